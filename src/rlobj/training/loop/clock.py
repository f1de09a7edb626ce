"""Where a step's time goes."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from rlobj.training.loop.callbacks import Callback

__all__ = ["PHASES", "Clock"]

PHASES = (
    "sampling",
    "grading",
    "scoring",
    "planning",
    "forward",
    "backward",
    "optimizer",
    "syncing",
    "evaluating",
    "writing",
)
"""What a second of a step may be spent on; the rest is `other`. Together they are the step."""


class Clock:
    """Seconds by phase, each counted once; the callback is called when a stage of the step begins.

    Steps follow each other without a gap: what is done between `stop` and the next step, such as
    writing a checkpoint, counts in the next one. Where the policy is on a GPU the clock waits for
    it at each change of phase, a few times a micro-batch.

    Args:
        callback: its `phase` is called when a stage begins.
        device: of the policy.
        now: seconds since some moment; by default wall-clock time.
    """

    def __init__(
        self,
        callback: Callback | None = None,
        device: torch.device | str = "cpu",
        now: Callable[[], float] | None = None,
    ):
        self._callback = callback or Callback()
        self._device = torch.device(device)
        self._now = now or time.perf_counter
        self.restart()

    def restart(self) -> None:
        """Nothing before now counts."""
        self._begun = self._since = self._stage_begun = self._now()
        self._phase = self._stage = "other"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stages: defaultdict[str, float] = defaultdict(float)

    @property
    def stage(self) -> str:
        """The stage that the step is in; "other" between steps."""
        return self._stage

    def start(self, stage: str) -> None:
        """Begin a stage and end the one before; nothing if the step is in this stage already.

        Seconds of a stage that are in no phase inside it count for the stage itself.
        """
        if stage == self._stage:
            return
        self._stages[self._stage] += self._to(stage) - self._stage_begun
        self._stage, self._stage_begun = stage, self._since
        self._callback.phase(stage)

    @contextlib.contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """Seconds of the block count for this phase, and not for what is around it."""
        around = self._phase
        self._to(phase)
        try:
            yield
        finally:
            self._to(around)

    def move(self, source: str, target: str, seconds: float) -> None:
        """Count some seconds of one phase for another."""
        self._seconds[source] -= seconds
        self._seconds[target] += seconds

    def _to(self, phase: str) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = self._now()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
        return now

    def stop(self, tokens: float) -> dict[str, float]:
        """The step is over: time/<phase>, time/other and time/step in seconds, tokens per second.

        time/updating is the wall time of the updates, whose phases are listed as well.

        Args:
            tokens: that the step sampled; their speed leaves out evaluating and writing.
        """
        now = self._to("other")
        self._stages[self._stage] += now - self._stage_begun
        total = now - self._begun
        times = {f"time/{phase}": self._seconds[phase] for phase in PHASES}
        training = total - times["time/evaluating"] - times["time/writing"]
        times["time/other"] = total - sum(times.values())
        times["time/updating"] = self._stages["updating"]
        self.restart()
        self._begun = self._since = self._stage_begun = now
        return {**times, "time/step": total, "tokens/per_second": tokens / max(training, 1e-9)}
