"""The reward `math_verify`: the package math-verify, in processes that are killed at a deadline."""

from __future__ import annotations

import math
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from pydantic import Field

from rlobj.base.errors import DataError, MissingExtra
from rlobj.base.showing import shown
from rlobj.rewards.kinds import Graded, Grader, Reward, best
from rlobj.workers.judge import Judge

if TYPE_CHECKING:
    from rlobj.data import Problem

_MEMORY = 4 * 2**30
_RECYCLE_AFTER = 1000
_BLOCK = 256
"""Gold answers that are read at a time."""
_NAMED = 5
"""Problems that an error names."""
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class MathVerify(Reward):
    """1 if the package math-verify finds the response equal to the gold answer, else 0.

    It gives the verdicts of other projects that grade with math-verify; `math` is more exact. A
    gold answer that math-verify cannot read is an error before anything is sampled.
    """

    deadline: float = Field(default=10.0, gt=0)
    """time limit for one response, in seconds of processor time; then it is wrong"""
    workers: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=1)
    """processes that grade responses; default: one per core, at most 8"""

    def open(self) -> Grader:
        """Return a grader with `workers` processes, which start when they are first needed.

        Raises:
            MissingExtra: math-verify is not installed.
        """
        if find_spec("math_verify") is None:
            raise MissingExtra("math-verify", "", "The reward math_verify")
        return _MathVerifyGrader(self.deadline, self.workers)


class _MathVerifyGrader(Grader):
    def __init__(self, deadline: float, workers: int) -> None:
        target = "rlobj.rewards.math_verify_worker:Comparer"
        self._workers = [Judge(target, deadline, _MEMORY, _RECYCLE_AFTER) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that math-verify can read all gold answers.

        Raises:
            DataError: it cannot read one.
        """
        golds = {gold: problem for problem in problems for gold in problem.golds}
        texts = [gold for gold in golds if not gold.removeprefix("-").isdecimal()]
        parts = [texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK)]
        unread = [
            f"{shown(gold)} of {golds[gold].id!r}"
            for part in self._on_workers(_unreadable, parts)
            for gold in part
        ]
        if unread:
            named = ", ".join(unread[:_NAMED]) + ", ..." * (len(unread) > _NAMED)
            raise DataError(
                f"math-verify cannot read {len(unread):,} of {len(golds):,} gold answers: {named}. "
                "Correct these rows or leave them out; or use another reward, such as math"
            )

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response; if a problem has alternatives, any of them is right."""
        return self._on_workers(_graded, list(zip(responses, problems, strict=True)))

    def _on_workers(
        self, ask: Callable[[Judge, Question], Answer], questions: Sequence[Question]
    ) -> list[Answer]:
        """Ask all questions, each of one worker; the answers in their order."""

        def answer(question: Question) -> Answer:
            worker = self._idle.get()
            try:
                return ask(worker, question)
            finally:
                self._idle.put(worker)

        with ThreadPoolExecutor(len(self._workers)) as threads:
            return list(threads.map(answer, questions))


def _unreadable(worker: Judge, golds: list[str]) -> list[str]:
    """Those of the gold answers that cannot be read, also because this takes too long."""
    reply, _ = worker.reply(golds, None)
    if reply is None and len(golds) > 1:
        return [gold for gold_alone in golds for gold in _unreadable(worker, [gold_alone])]
    return golds if reply is None else reply


def _graded(worker: Judge, question: tuple[str, Problem]) -> Graded:
    response, problem = question
    return best(_graded_by(worker, response, gold) for gold in problem.golds)


def _graded_by(worker: Judge, response: str, gold: str) -> Graded:
    """The grade by one gold answer; undecided if that, or the machine, is at fault."""
    reply, reason = worker.judge((gold, response), (gold, f"\\boxed{{{gold}}}"))
    if reply is None:
        return Graded(math.nan, None, reason, None)
    correct, answer = reply or (False, None)  # False: the answer is why there is no verdict
    return Graded(float(correct), correct, reason, answer)
