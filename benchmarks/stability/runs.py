"""The runs of the study: each in a process of its own with one thread, trained once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.stability.conditions import objective
from benchmarks.stability.plan import Run

KEPT = ("config.resolved.yaml", "metrics.jsonl", "tables", driver.LOG)


def train(run: Run, out: Path) -> Mapping[str, Any]:
    """Train a run from its beginning in this process."""
    import rlobj

    rlobj.train(objective(run.arm.condition), data="scratchpad", out=out, settings=run.settings())
    return {}


def make(runs: Path, study: Sequence[Run], at_once: int, tell: Callable[[Run, str], None]) -> None:
    """Train the runs that did not end.

    Args:
        runs: folder of the study.
        study: the runs; the first ones start first.
        at_once: runs at one time.
        tell: gets each run that starts or ends, and "running", "done" or "failed: ...".
    """
    jobs = [driver.Job(run.folder(runs), partial(train, run), KEPT) for run in study]
    driver.make(jobs, at_once, lambda at, state: tell(study[at], state), preload=driver.IMPORTS)
