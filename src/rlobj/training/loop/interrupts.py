"""SIGTERM and Ctrl-C finish and save the step before the run ends."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ECHO = 1.0
"""Seconds in which a second signal counts as the first: a service manager may signal every process
of a job, and a launcher passes its own signal on."""


class Interrupts:
    """A context manager in which SIGTERM ends the program as Ctrl-C does.

    After `defer` the first signal only asks the run to end after its step, and a second one ends it
    at once. In other threads than the main one signals are not handled.

    Attributes:
        asked: this process has received the first signal.
    """

    def __init__(self) -> None:
        self.asked = False
        self._asked_at = 0.0
        self._deferring = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                if signal.getsignal(each) is not signal.SIG_IGN:
                    self._before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def defer(self) -> None:
        """Steps begin: let a signal wait until the step is saved."""
        self._deferring = True

    def _receive(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if not self._deferring or (self.asked and now - self._asked_at > _ECHO):
            raise KeyboardInterrupt
        if self.asked:
            return
        self.asked, self._asked_at = True, now
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        logger.warning("%s: finishing and saving this step; a second signal stops at once", name)
