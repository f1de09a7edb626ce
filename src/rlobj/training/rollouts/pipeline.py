"""Rollouts in the order of their steps, each sampled a fixed number of steps ahead.

With depth 0 a step samples, then trains. With depth k the rollout of step t is sampled while the k
steps before it are trained, from the weights of version max(0, t - k). It is exactly k steps old,
so that a resumed run sees the same rollouts.
"""

from __future__ import annotations

import threading
import time
from typing import Self

from rlobj.training.rollouts.collector import Collector, Rollout
from rlobj.training.rollouts.journal import Journal


class Pipeline:
    """Collects rollouts ahead of the steps that train on them, and writes each to disk.

    A context manager: it waits for the rollout that is being sampled, unless an error ends it.

    Args:
        collector: samples and grades a step's rollout with the sampler's present weights.
        journal: the rollouts on disk.
        depth: steps ahead; 0 = none.
        steps: of the whole run; no rollout is sampled for later steps.

    Attributes:
        collector: as given; another one may take its place before the first step.
    """

    def __init__(self, collector: Collector, journal: Journal, depth: int, steps: int) -> None:
        self.collector = collector
        self._journal = journal
        self._depth = depth
        self._steps = steps
        self._ready: dict[int, Rollout] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread is not None and kind is None:
            self._thread.join()

    def take(self, step: int) -> Rollout:
        """The step's rollout. Sampling of the one `depth` steps later starts in a thread."""
        for ahead in range(step, min(step + max(self._depth, 1), self._steps)):
            self._obtain(ahead)
        following = step + self._depth
        if self._depth and following < self._steps:
            self._thread = threading.Thread(
                target=self._obtain_apart, args=(following,), name="sampling", daemon=True
            )
            self._thread.start()
        return self._ready.pop(step)

    def settle(self) -> None:
        """Wait until nothing is being sampled, so that the sampler's weights may change.

        Raises:
            Exception: the error that stopped the sampling.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pending(self) -> list[int]:
        """The steps whose rollouts are ready."""
        return sorted(self._ready)

    def _obtain_apart(self, step: int) -> None:
        try:
            self._obtain(step)
        except BaseException as error:
            self._error = error

    def _obtain(self, step: int) -> None:
        """Get a step's rollout from the disk, or else from the sampler."""
        if step in self._ready:
            return
        rollout = self._journal.read(step)
        if rollout is None:
            rollout = self.collector.collect(step)
            start = time.perf_counter()
            self._journal.write(step, rollout)
            rollout.seconds["write"] = time.perf_counter() - start
        self.collector.stream.restore(rollout.stream)
        self._ready[step] = rollout
