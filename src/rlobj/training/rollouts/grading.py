"""Grades of responses, given by a thread while other responses are sampled."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from rlobj.conversations.grading import grades_of
from rlobj.data import Problem
from rlobj.rewards import Graded, Grader
from rlobj.samplers import Response


class Grading:
    """The grades of one call of a sampler. A context manager; an error in its block ends grading.

    A thread grades all responses that wait, in one call of the grader. A grade depends on its
    response alone, so the grades equal those of one call for all.

    Args:
        grader: an open grader.
        problems: one problem for each prompt.
        at_limit: see `EnvironmentSettings.at_limit`.

    Attributes:
        seconds: time spent on grading after sampling had ended.
        hidden: seconds spent on grading during sampling.
    """

    def __init__(
        self, grader: Grader, problems: Sequence[Problem], at_limit: float | str = "graded"
    ) -> None:
        self.seconds = self.hidden = 0.0
        self._grader = grader
        self._problems, self._at_limit = problems, at_limit
        self._waiting: queue.SimpleQueue[tuple[int, list[Response]] | None] = queue.SimpleQueue()
        self._grades: dict[int, list[Graded]] = {}
        self._error: BaseException | None = None
        self._ended = False
        self._busy = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True)  # a reward may hang

    def __enter__(self) -> Grading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._waiting.put(None)

    def done(self, index: int, samples: list[Response]) -> None:
        """Take the finished samples of a prompt; pass this method to `Sampler.sample`.

        They wait for the others if the grader is batched.

        Raises:
            Exception: grading failed, so sampling should stop.
        """
        if self._error is not None:
            raise self._error
        if not self._grader.batched:
            self._waiting.put((index, samples))

    def finish(self, groups: Sequence[list[Response]]) -> list[list[Graded]]:
        """Return the grades of all responses, in their order.

        Raises:
            Exception: grading failed.
        """
        start = time.perf_counter()
        self._waiting.put(None)
        while self._thread.is_alive():
            self._thread.join(1.0)  # a signal that comes just before a wait is handled after it
        if self._error is not None:
            raise self._error
        self.hidden = max(self._busy - (time.perf_counter() - start), 0.0)
        self._grade([group for group in enumerate(groups) if group[0] not in self._grades])
        self.seconds = time.perf_counter() - start
        return [self._grades[index] for index in range(len(groups))]

    def _work(self) -> None:
        """Grade what waits, in the thread, until None comes."""
        try:
            more = True
            while more:
                taken = [self._waiting.get()]
                while not self._waiting.empty():
                    taken.append(self._waiting.get())
                more = None not in taken
                if not self._ended:
                    self._grade([group for group in taken if group is not None])
        except BaseException as error:
            self._error = error

    def _grade(self, groups: Sequence[tuple[int, list[Response]]]) -> None:
        """Grade some groups in one call."""
        start = time.perf_counter()
        responses = [response for _, group in groups for response in group]
        problems = [self._problems[index] for index, group in groups for _ in group]
        grades = iter(
            grades_of(self._grader, responses, problems, self._at_limit) if responses else ()
        )
        self._grades |= {index: [next(grades) for _ in group] for index, group in groups}
        self._busy += time.perf_counter() - start
