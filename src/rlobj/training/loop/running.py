"""The steps of a run, and what ends it: the last step, a signal, a finding, or an error.

SIGTERM and Ctrl-C finish and save the step before the run ends. A run that waits for its sampler
saves the steps before.
"""

import contextlib
import gc
import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rlobj.base.errors import RunError
from rlobj.base.files import write_whole
from rlobj.base.paths import nearby, step_of
from rlobj.base.processes import ENDING
from rlobj.ranks import any_rank
from rlobj.runs.checkpoints import best_checkpoint
from rlobj.runs.layout import CONFIG_FILE, STOP_FILE
from rlobj.samplers.types import WaitEnded
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import trust_option
from rlobj.training.loop.inputs import CallerInputs
from rlobj.training.loop.opening import open_run
from rlobj.training.loop.result import TrainingResult
from rlobj.training.loop.step import explained, run_step
from rlobj.training.loop.trainer import Trainer
from rlobj.training.resolving import RunRequest

logger = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 1.0
"""Seconds in which a second signal counts as the first: a service manager may signal every process
of a job, and a launcher passes its own signal on."""
_YOUNG = 50_000
"""New objects among which Python looks for cycles. A step makes some thousands, and hardly any
cycle; Python's own number, 700 or 2,000, is reached several times while a rollout is built."""


def run_training(
    config: RunConfig,
    out: Path | str,
    inputs: CallerInputs = CallerInputs(),  # noqa: B008
    *,
    resume: bool = False,
) -> TrainingResult:
    """Run the configuration to its last step.

    On SIGTERM or Ctrl-C the step is finished and saved, and the result has fewer steps. A run that
    waits for a server gives the step up and saves those before. A finding that `training.stop_on`
    lists stops the run in the same way, with a RunError.

    Args:
        config: the run.
        out: the run directory; new, or with `resume` the run to continue.
        inputs: what is used instead of what the configuration would open, and callbacks.
        resume: continue from the newest checkpoint (or the start, before the first).

    Raises:
        ConfigError: the input was wrong; nothing was done.
        RunError: the work failed; `resume` continues from the last checkpoint.
    """
    return run_steps(RunRequest(config, Path(out), resumed=resume), inputs)


def run_steps(request: RunRequest, inputs: CallerInputs) -> TrainingResult:
    """Open the run, and make its steps as `run_training`."""
    start = time.perf_counter()
    with (
        Interrupts() as interrupts,
        open_run(request, inputs) as trainer,
        noted(trainer),
        contextlib.ExitStack() as stack,
    ):
        gc.freeze()  # each full collection would visit the million objects that imports leave
        stack.callback(gc.unfreeze)
        thresholds = gc.get_threshold()
        if thresholds[0]:  # 0: the caller has turned the collector off
            gc.set_threshold(max(_YOUNG, thresholds[0]), *thresholds[1:])
        stack.callback(gc.set_threshold, *thresholds)
        interrupts.defer()
        while trainer.learner.steps < request.config.training.steps:
            try:
                run_step(trainer)
            except WaitEnded:  # the steps done are saved
                break
            with explained(trainer):
                stop_on_findings(trainer)
                if any_rank(ENDING.is_set(), trainer.comm):
                    trainer.save(now=True)
                    break
    seconds = time.perf_counter() - start
    # By default each rank names the folder after its own clock, and rank 0's name is used.
    folder = request.path if trainer.comm.rank == 0 else trainer.run.path
    passed = None if inputs.passed("model") is None else (inputs.model, inputs.tokenizer)
    return TrainingResult(folder, trainer.learner.steps, seconds, trainer.run.lines(), passed)


class Interrupts:
    """A context manager in which SIGTERM ends the program as Ctrl-C does.

    The KeyboardInterrupt has the number of the signal. After `defer` the first signal only sets
    `ENDING`, and a second one ends the program at once. In other threads than the main one signals
    are not handled.
    """

    def __init__(self) -> None:
        self._signalled_at, self._deferring = 0.0, False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        ENDING.clear()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        ENDING.clear()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def defer(self) -> None:
        """Steps begin: let a signal wait until the step is saved."""
        self._deferring = True

    def _receive(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._deferring or (ENDING.is_set() and now - self._signalled_at > _ECHO):
            raise KeyboardInterrupt(number)
        if ENDING.is_set():
            return
        ENDING.set()
        self._signalled_at = now
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        logger.warning("%s: finishing and saving this step; a second signal stops at once", name)


def stop_on_findings(trainer: Trainer) -> None:
    """Save and stop the run, on all ranks together, if the last step began a finding it stops on.

    A finding that held when the run was resumed does not stop it again.

    Raises:
        RunError: `training.stop_on` lists the finding.
    """
    if not (names := trainer.config.training.stop_on):
        return
    begun = next((finding for finding in trainer.begun if finding.name in names), None)
    if (finding := trainer.comm.broadcast(begun)) is None:
        return
    trainer.save(now=True)
    run, rate = nearby(trainer.run.path), trainer.config.training.learning_rate / 10
    best = best_checkpoint(run, before=finding.since)
    trust = trust_option(settings_of(trainer.config))
    command = f"rlobj resume {run}{trust}"
    if finding.slower:  # the policy now is the one that failed
        start = f"--from {run}@{step_of(best)}{trust}" if best else f"--config {run / CONFIG_FILE}"
        command = f"rlobj train {start} --set training.learning_rate={rate:.1g}"
    raise RunError(
        f"training.stop_on lists {finding.name}.\n{finding}\nBest checkpoint before step "
        f"{finding.since}: {best or 'none was saved'}\nTo go on:\n  {command}",
        finding=finding.name,
    )


@contextlib.contextmanager
def noted(trainer: Trainer) -> Iterator[None]:
    """Inside, an error that ends the run is noted in its folder, where `diagnose` reads it."""
    try:
        yield
    except RunError as error:
        if trainer.comm.rank == 0:
            step = trainer.metrics.get("step", trainer.learner.steps)
            note = {"step": step, "finding": error.finding, "message": str(error)}
            with contextlib.suppress(RunError):  # on a full disk the error itself is the message
                write_whole(trainer.run.path / STOP_FILE, json.dumps(note).encode())
        raise
