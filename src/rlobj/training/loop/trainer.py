"""A training run, from its configuration to its last step."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rlobj.base.progress import ENDING
from rlobj.config.run_config import RunConfig
from rlobj.ranks import any_rank
from rlobj.samplers.types import WaitEnded
from rlobj.training.loop import stages
from rlobj.training.loop.callbacks import Callback
from rlobj.training.loop.failures import explained
from rlobj.training.loop.given import Given
from rlobj.training.loop.opening import open_parts
from rlobj.training.loop.parts import Parts
from rlobj.training.loop.step import run_step
from rlobj.training.loop.stopping import Interrupts, noted, stop_on_findings, write_note
from rlobj.training.parallel.hangs import HangWatch
from rlobj.training.result import TrainingResult


def run_training(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
    given: Given = Given(),  # noqa: B008
) -> TrainingResult:
    """Run the configuration to its last step.

    On SIGTERM or Ctrl-C the step is finished and saved, and the result has fewer steps. A run that
    waits for a server gives the step up and saves those before. A finding that `training.stop_on`
    lists stops the run in the same way, with a RunError.

    Args:
        config: the run.
        out: the run directory; new, or with `resume` the run to continue.
        resume: continue from the newest checkpoint (or the start, before the first).
        callbacks: receive the events of the run.
        given: parts that are used instead of what the configuration would open.

    Raises:
        ConfigError: the input was wrong; nothing was done.
        RunError: the work failed; `resume` continues from the last checkpoint.
    """
    start = time.perf_counter()
    opened = open_parts(config, out, resume=resume, callbacks=callbacks, given=given)
    with (
        contextlib.chdir("."),  # a reward may have changed it
        Interrupts() as interrupts,
        opened as parts,
        noted(parts),
        _watched(parts),
        _frozen(),
    ):
        interrupts.defer()
        while parts.learner.steps < config.training.steps:
            try:
                run_step(parts)
            except WaitEnded:  # the steps done are saved
                break
            with explained(parts):
                stop_on_findings(parts)
                if any_rank(ENDING.is_set(), parts.comm):
                    stages.save(parts, now=True)
                    break
    seconds = time.perf_counter() - start
    lines = parts.run.lines()
    # By default each rank names the folder after its own clock, and rank 0's name is used.
    folder = Path(out) if parts.comm.rank == 0 else parts.run.path
    return TrainingResult(folder, parts.learner.steps, seconds, lines, given.policy)


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """Leave the objects that exist now out of Python's garbage collections.

    Imports leave about a million of them, and each full collection would visit them all.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _watched(parts: Parts) -> HangWatch:
    """Ends all processes if one of them hangs."""
    limit, clock = parts.config.training.hang_timeout, parts.learner.clock
    return HangWatch(parts.comm, limit, lambda: clock.stage, partial(write_note, parts))
