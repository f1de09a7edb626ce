"""Where a step's time goes."""

from __future__ import annotations

import time

from rlobj.training.observer import Observer
from rlobj.training.rollout import Rollout

__all__ = ["Clock"]


class Clock:
    """Seconds by phase, telling the observer of each."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._begun = self._phase_begun = time.perf_counter()
        self._phase = ""
        self._seconds: dict[str, float] = {}

    def start(self, phase: str) -> None:
        """The phase before this one is over."""
        self._end()
        self._phase = phase
        self._observer.phase(phase)

    def _end(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = now - self._phase_begun
        self._phase_begun = now

    def stop(self, rollout: Rollout, tokens: float) -> dict[str, float]:
        """time/<phase> in seconds, and tokens per second."""
        self._end()
        total = time.perf_counter() - self._begun
        times = {f"time/{name}": seconds for name, seconds in self._seconds.items()}
        times["time/grading"] = rollout.seconds["grade"]
        times["time/sampling"] = rollout.seconds["sample"]
        training = total - times.get("time/evaluating", 0.0)
        return {**times, "time/step": total, "tokens/per_second": tokens / max(training, 1e-9)}
