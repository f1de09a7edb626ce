"""Grading during sampling: a thread grades finished responses while others are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence
from multiprocessing.pool import AsyncResult, ThreadPool

from rlobj.data import Problem
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sample


class Grading:
    """The grades of one call of a sampler. A context manager; an error in its block ends grading.

    A grade depends on its response alone, so the grades equal those of one call of the grader.

    Args:
        grader: an open grader.
        problems: one problem for each prompt.

    Attributes:
        seconds: time spent on grading after sampling had ended.
        hidden: seconds spent on grading during sampling.
    """

    def __init__(self, grader: Grader, problems: Sequence[Problem]) -> None:
        self.seconds = self.hidden = 0.0
        self._grader = grader
        self._problems = problems
        self._thread = ThreadPool(1)  # of a daemon: a reward that hangs does not keep the program
        self._handed: dict[int, AsyncResult[list[Graded]]] = {}
        self._busy = 0.0

    def __enter__(self) -> Grading:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.terminate()

    def done(self, index: int, samples: list[Sample]) -> None:
        """Take the finished samples of a prompt; pass this method to `Sampler.sample`.

        Raises:
            Exception: grading failed, so sampling should stop.
        """
        for result in self._handed.values():
            if result.ready():
                result.get()
        self._handed[index] = self._thread.apply_async(self._grade, [[(index, samples)]])

    def finish(self, groups: Sequence[list[Sample]]) -> list[list[Graded]]:
        """Return the grades of all samples, in their order.

        Raises:
            Exception: grading failed.
        """
        start = time.perf_counter()
        early = {index: result.get() for index, result in self._handed.items()}
        self.hidden = max(self._busy - (time.perf_counter() - start), 0.0)
        rest = iter(self._grade([each for each in enumerate(groups) if each[0] not in early]))
        grades = [early.get(i) or [next(rest) for _ in group] for i, group in enumerate(groups)]
        self.seconds = time.perf_counter() - start
        return grades

    def _grade(self, groups: Sequence[tuple[int, list[Sample]]]) -> list[Graded]:
        """The grades of some groups, one after the other."""
        start = time.perf_counter()
        texts = [sample.text for _, group in groups for sample in group]
        asked = [self._problems[i] for i, group in groups for _ in group]
        grades = self._grader.score(texts, asked) if texts else []
        self._busy += time.perf_counter() - start
        return grades
