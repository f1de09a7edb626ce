"""The time of a step, by phases."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch

from rlobj.training.loop.callbacks import Callback

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
"""The phases of a step. The rest of its time is `other`; together they are the whole step."""


class Clock:
    """Seconds by phase, each counted once.

    There is no gap between steps: what is done between `stop` and the next step, such as writing a
    checkpoint, counts for the next step. If the policy is on a GPU, the clock waits for it at each
    change of phase, a few times per micro-batch.

    Args:
        callbacks: their `phase` is called when a stage of the step begins.
        device: of the policy.

    Attributes:
        stage: the stage that the step is in; "other" between steps.
    """

    def __init__(
        self, callbacks: Sequence[Callback] = (), device: torch.device | str = "cpu"
    ) -> None:
        self._callbacks = callbacks
        self._device = torch.device(device)
        self.restart()

    def restart(self, now: float | None = None) -> None:
        """Forget the time until now."""
        self._begun = self._since = self._stage_begun = now or time.perf_counter()
        self._phase = self.stage = "other"
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stages: defaultdict[str, float] = defaultdict(float)

    def start(self, stage: str) -> None:
        """Begin a stage and end the one before; nothing if the step is in this stage already.

        Seconds of a stage that are in no phase inside it count for the stage itself.
        """
        if stage == self.stage:
            return
        self._stages[self.stage] += self._to(stage) - self._stage_begun
        self.stage, self._stage_begun = stage, self._since
        for callback in self._callbacks:
            callback.phase(stage)

    @contextlib.contextmanager
    def inside(self, phase: str) -> Iterator[None]:
        """Count the seconds of the block for this phase, and not for the phase around it."""
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
        now = time.perf_counter()
        self._seconds[self._phase] += now - self._since
        self._phase, self._since = phase, now
        return now

    def stop(self, tokens: float) -> dict[str, float]:
        """End the step: time/<phase>, time/other and time/step in seconds, and tokens per second.

        time/updating is the wall time of all updates, which the phases inside them count as well.
        time/waiting is that of sampling and grading together: the trainer had no responses.

        Args:
            tokens: sampled in the step. Their speed leaves out evaluating and writing.
        """
        now = self._to("other")
        self._stages[self.stage] += now - self._stage_begun
        total = now - self._begun
        times = {f"time/{phase}": self._seconds[phase] for phase in PHASES}
        training = total - times["time/evaluating"] - times["time/writing"]
        times["time/other"] = total - sum(times.values())
        times["time/updating"] = self._stages["updating"]
        times["time/waiting"] = times["time/sampling"] + times["time/grading"]
        self.restart(now)
        return {**times, "time/step": total, "tokens/per_second": tokens / max(training, 1e-9)}
