"""The runs of the study: each in a process of its own with one thread, trained once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import driver
from benchmarks.stability.plan import Run

KEPT = ("config.resolved.yaml", "metrics.jsonl", "tables", driver.LOG)


def train(run: Run, out: Path) -> Mapping[str, Any]:
    """Train a run from its beginning in this process."""
    import rlobj

    rlobj.train(run.arm.loss(), data="scratchpad", out=out, settings=run.settings())
    return {}


def make(runs: Path, study: Sequence[Run], at_once: int, tell: Callable[[int, str], None]) -> None:
    """Train the runs that did not end; the first ones start first."""
    jobs = [driver.Job(run.folder(runs), partial(train, run), KEPT) for run in study]
    driver.make(jobs, at_once, tell, preload=("benchmarks.warm",))
