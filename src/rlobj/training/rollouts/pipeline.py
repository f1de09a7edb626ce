"""Rollouts in the order of their steps, each sampled a fixed number of steps ahead.

With depth 0 a step samples, then trains. With depth k the rollout of step t is sampled while the k
steps before it are trained, from the weights of version max(0, t - k). It is exactly k steps old.
A run that is resumed has nothing ahead: its first k rollouts are of the weights that it began with.
"""

from __future__ import annotations

import threading
from typing import Self

from rlobj.training.rollouts.collector import Collector
from rlobj.training.rollouts.rollout import Rollout


class Pipeline:
    """Collects rollouts ahead of the steps that train on them.

    A context manager: it waits for the rollout that is being sampled, unless an error ends it.

    Args:
        collector: samples and grades a step's rollout with the sampler's present weights.
        depth: steps ahead; 0 = none.
        steps: of the whole run; no rollout is sampled for later steps.
    """

    def __init__(self, collector: Collector, depth: int, steps: int) -> None:
        self.collector = collector
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
            if ahead not in self._ready:
                self._ready[ahead] = self.collector.collect(ahead)
        following = step + self._depth
        if self._depth and following < self._steps:
            self._thread = threading.Thread(
                target=self._collect_apart, args=(following,), name="sampling", daemon=True
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

    def _collect_apart(self, step: int) -> None:
        try:
            self._ready[step] = self.collector.collect(step)
        except BaseException as error:
            self._error = error
