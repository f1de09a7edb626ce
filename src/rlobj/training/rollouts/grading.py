"""Grading during sampling: a thread grades finished responses while others are sampled."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from rlobj.data import Problem
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Sample


class Grading:
    """The grades of one call of a sampler. A context manager; an error in its block ends grading.

    The thread starts with the first call of `done`, and then only the thread uses the grader. A
    grade depends on its response alone, so the grades equal those of one call of the grader.

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
        self._grades: dict[int, list[Graded]] = {}
        self._arrived: queue.SimpleQueue[tuple[int, list[Sample]] | None] = queue.SimpleQueue()
        self._handed: set[int] = set()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._busy = 0.0

    def __enter__(self) -> Grading:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._error = self._error or KeyboardInterrupt()  # the thread then grades nothing more
            self._arrived.put(None)

    def done(self, index: int, samples: list[Sample]) -> None:
        """Take the finished samples of a prompt; pass this method to `Sampler.sample`.

        Raises:
            Exception: grading failed, so sampling should stop.
        """
        if self._error is not None:
            raise self._error
        self._handed.add(index)
        self._arrived.put((index, samples))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="grading", daemon=True)
            self._thread.start()

    def finish(self, groups: Sequence[list[Sample]]) -> list[list[Graded]]:
        """Return the grades of all samples, in their order.

        Raises:
            Exception: grading failed.
        """
        start = time.perf_counter()
        if self._thread is not None:
            self._arrived.put(None)
            self._thread.join()
            self.hidden = max(self._busy - (time.perf_counter() - start), 0.0)
        if self._error is not None:
            raise self._error
        self._grade([(i, group) for i, group in enumerate(groups) if i not in self._handed])
        self.seconds = time.perf_counter() - start
        return [self._grades[i] for i in range(len(groups))]

    def _work(self) -> None:
        """Grade all samples that have arrived, again and again, until None arrives."""
        more = True
        try:
            while more:
                batch = [self._arrived.get()]
                while not self._arrived.empty():
                    batch.append(self._arrived.get())
                more = None not in batch and self._error is None
                if self._error is None:
                    start = time.perf_counter()
                    self._grade([each for each in batch if each is not None])
                    self._busy += time.perf_counter() - start
        except BaseException as error:
            self._error = error

    def _grade(self, groups: Sequence[tuple[int, list[Sample]]]) -> None:
        texts = [sample.text for _, group in groups for sample in group]
        asked = [self._problems[i] for i, group in groups for _ in group]
        grades = iter(self._grader.score(texts, asked) if texts else [])
        self._grades |= {i: [next(grades) for _ in group] for i, group in groups}
