"""A file of verifiers' traces as an update of a run: each line is an episode, or a trace."""

from pathlib import Path

from rlobj.base.errors import ConfigError, reported
from rlobj.base.paths import there
from rlobj.conversations.traces import DAMAGED, read_traces
from rlobj.objectives.objective import Objective
from rlobj.runs.tables import UpdateTable

_MOST = 4 << 30
"""Bytes of the largest file that is read."""


def is_traces(path: Path) -> bool:
    """Whether a path is a file of traces."""
    return path.suffix == ".jsonl" and there(path) and path.is_file()


def traced_update(path: Path) -> UpdateTable:
    """The traces of a file as one update of `Objective()`, of step 1. Nothing in it is executed.

    Args:
        path: a file of JSON lines that verifiers or prime-rl wrote.

    Raises:
        ConfigError: the file is damaged or too large.
    """
    with reported(ConfigError, f"{path} has no traces of verifiers", *DAMAGED, OSError):
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST >> 30} GiB")
        with path.open("rb") as file:
            table, sequences = read_traces(line for line in file if line.strip())
    objective = Objective()
    plan = objective.plan([table], clauses=True)
    clauses = plan.asked_clauses
    decided = (objective, objective.init(), plan.weights[0], clauses.codes, clauses.causes)
    return UpdateTable(1, 1, table, *decided, sequences, {"traces": True})
