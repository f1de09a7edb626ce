"""A file of verifiers' traces as the updates of a run: one line is an episode, or a trace."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, DataError, reported
from rlobj.base.files import parse_json
from rlobj.base.paths import there
from rlobj.conversations.traces import read_traces
from rlobj.objectives.objective import Objective
from rlobj.runs.tables import UpdateTable

_MOST = 4 << 30
"""Bytes of the largest file that is read."""
_WRONG = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, OSError)
"""The errors of reading a damaged file."""


def is_traces(path: Path) -> bool:
    """Whether a path is a file of traces."""
    return path.suffix == ".jsonl" and there(path) and path.is_file()


def traced_updates(path: Path, step: int | None = None) -> Iterator[UpdateTable]:
    """The traces of each training step that a file has, as one update of `Objective()`.

    Nothing in the file is executed. An episode without a step is of step 1.

    Args:
        path: a file of JSON lines that verifiers or prime-rl wrote.
        step: only this step; None = all.

    Raises:
        ConfigError: the file is damaged or too large, or it has no such step.
    """
    steps: dict[int, list[Any]] = {}
    with reported(ConfigError, f"{path} has no traces of verifiers", *_WRONG):
        if path.stat().st_size > _MOST:
            raise ValueError(f"it has more than {_MOST >> 30} GiB")
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                with reported(DataError, f"line {number}", *_WRONG):
                    episode: Any = parse_json(line) if line.strip() else {"traces": []}
                    work = (episode.get("run") or {}).get("work") or {}
                    steps.setdefault(int(work.get("step", 1)), []).append(episode)
        chosen = {number: steps[number] for number in sorted(steps) if step in (None, number)}
        if not chosen:
            has = f"step {step}; it has {', '.join(map(str, sorted(steps)))}"
            raise DataError(f"it has no {has if steps else 'line'}")
        read = {number: read_traces(episodes) for number, episodes in chosen.items()}
    for number, (table, sequences) in read.items():
        objective = Objective()
        state = objective.init()
        plan = objective.plan([table], state, clauses=True)
        assert plan.clauses is not None
        decided = (objective, state, plan.weights[0], plan.clauses.codes, plan.clauses.causes)
        yield UpdateTable(number, 1, table, *decided, sequences, {})
