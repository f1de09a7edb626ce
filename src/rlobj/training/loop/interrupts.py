"""SIGTERM and Ctrl-C: the step is finished and saved, then the run ends well."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from rlobj.objectives.statistics import Comm
from rlobj.training.parallel.agreement import any_rank

__all__ = ["Interrupts"]

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 1.0
"""Seconds in which a second signal is the first again: a service manager signals every process of
a job, and a launcher passes its own on."""


class Interrupts:
    """A context manager: inside, signals end the program as Ctrl-C does.

    After `defer` the first one asks for an end after the step, and a second ends now. Outside the
    main thread signals are left alone.
    """

    def __init__(self) -> None:
        self.asked = False
        self._heard_at = 0.0
        self._deferring = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def defer(self) -> None:
        """From now on there is something to finish and to save."""
        self._deferring = True

    def _heard(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._deferring or (self.asked and now - self._heard_at > _ECHO):
            raise KeyboardInterrupt
        if self.asked:
            return
        self.asked, self._heard_at = True, now
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        logger.warning("%s: finishing and saving this step; a second signal stops at once", name)

    def agreed(self, comm: Comm) -> bool:
        """Was any rank asked to end? The same answer on every rank."""
        return any_rank(self.asked, comm)
