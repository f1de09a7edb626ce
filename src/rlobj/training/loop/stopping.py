"""Ending a run: signals, the findings that it is asked to stop on, and a note of any error.

SIGTERM and Ctrl-C finish and save the step before the run ends. A run that waits for its sampler
saves the steps before.
"""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Self

from rlobj.base.errors import RunError
from rlobj.base.files import nearby, step_of, write_whole
from rlobj.base.progress import ENDING
from rlobj.config.resuming import trust_option
from rlobj.config.run_config import settings_of
from rlobj.config.run_folder import ACCURACY, CONFIG_FILE, STOP_FILE, best_checkpoint, held_out
from rlobj.insight.diagnosis import Finding
from rlobj.training.loop import stages
from rlobj.training.loop.parts import Parts

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 1.0
"""Seconds in which a second signal counts as the first: a service manager may signal every process
of a job, and a launcher passes its own signal on."""


class Interrupts:
    """A context manager in which SIGTERM ends the program as Ctrl-C does.

    The KeyboardInterrupt has the number of the signal. After `defer` the first signal only sets
    `ENDING`, and a second one ends the program at once. In other threads than the main one signals
    are not handled.
    """

    def __init__(self) -> None:
        self._asked_at = 0.0
        self._deferring = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        ENDING.clear()
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        ENDING.clear()
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def defer(self) -> None:
        """Steps begin: let a signal wait until the step is saved."""
        self._deferring = True

    def _receive(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._deferring or (ENDING.is_set() and now - self._asked_at > _ECHO):
            raise KeyboardInterrupt(number)
        if ENDING.is_set():
            return
        ENDING.set()
        self._asked_at = now
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        logger.warning("%s: finishing and saving this step; a second signal stops at once", name)


def stop_on_findings(parts: Parts) -> None:
    """Save and stop the run, on all ranks together, if the last step began a finding it stops on.

    A finding that held when the run was resumed does not stop it again.

    Raises:
        RunError: `training.stop_on` lists the finding.
    """
    names = parts.config.training.stop_on
    if not names:
        return
    begun = next((each for each in parts.begun if each.name in names), None)
    if (begun := parts.comm.broadcast(begun)) is not None:
        stages.save(parts, now=True)
        raise RunError(_reason(parts, begun), finding=begun.name)


def _reason(parts: Parts, finding: Finding) -> str:
    """Why the run stops, its best checkpoint before that, and what to type."""
    run, rate = nearby(parts.run.path), parts.config.training.learning_rate / 10
    best, (measure, known) = best_checkpoint(run, before=finding.since), held_out(run)
    found = f"none was saved with a {measure.name}{' above 0' * (measure is ACCURACY)}"
    if best is not None:
        found = f"{best}, {measure.name} {known[best]:.3f}"
    trust = trust_option(settings_of(parts.config))
    advice = f"To go on with the same settings:\n  rlobj train --resume {run}{trust}"
    if "training.learning_rate" in finding.cure:
        again = f"--config {run / CONFIG_FILE}"  # the policy now is the one that failed
        start = again if best is None else f"--from {run}@{step_of(best)}"
        advice = (
            "To start again with a lower learning rate:\n"
            f"  rlobj train {start}{trust} --set training.learning_rate={rate:.1g}"
        )
    return (
        f"training.stop_on lists {finding.name}.\n{finding}\n"
        f"Best checkpoint before step {finding.since}: {found}\n{advice}"
    )


def write_note(parts: Parts, message: str, finding: str | None = None) -> None:
    """Note in the run's folder why the run ends."""
    step = parts.metrics.get("step", parts.learner.steps)
    note = {"step": step, "finding": finding, "message": message}
    with suppress(RunError):  # on a full disk the error itself is the message
        write_whole(parts.run.path / STOP_FILE, json.dumps(note).encode())


@contextmanager
def noted(parts: Parts) -> Iterator[None]:
    """Inside, an error that ends the run is noted in its folder, where `diagnose` reads it."""
    try:
        yield
    except RunError as error:
        if parts.comm.rank == 0:
            write_note(parts, str(error), error.finding)
        raise
