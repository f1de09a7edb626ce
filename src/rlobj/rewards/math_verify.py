"""The reward `math_verify`: the package math-verify, in processes that are killed at a deadline."""

import math
import os
from collections.abc import Sequence

from pydantic import Field

from rlobj.data import Problem
from rlobj.rewards.kinds import Graded, Grader, Reward, best
from rlobj.workers.pool import Pool
from rlobj.workers.worker import Worker

_MEMORY = 4 * 2**30


class MathVerify(Reward):
    """1 if the package math-verify finds the response equal to the gold answer, else 0.

    It gives the verdicts of other projects that grade with math-verify; `math` is more exact. A
    response is undecided if math-verify cannot read its gold answer.
    """

    deadline: float = Field(default=10.0, gt=0)
    """time limit for one response, in seconds of processor time; then it is wrong"""
    workers: int = Field(default_factory=lambda: min(8, os.cpu_count() or 1), ge=1)
    """processes that grade responses; default: one per core, at most 8"""

    def open(self) -> Grader:
        """Return a grader with `workers` processes, which start when they are first needed."""
        return _MathVerifyGrader(self.deadline, self.workers)


class _MathVerifyGrader(Grader):
    def __init__(self, deadline: float, workers: int) -> None:
        target = "rlobj.rewards.math_verify_worker:Comparer"
        self._pool = Pool(
            workers, target, memory=_MEMORY, processor_seconds=deadline, recycle_after=1000
        )

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response; if a problem has alternatives, any of them is right."""
        return self._pool.map(_graded, list(zip(responses, problems, strict=True)))


def _graded(worker: Worker, question: tuple[str, Problem]) -> Graded:
    response, problem = question
    return best(_graded_by(worker, response, gold) for gold in problem.golds)


def _graded_by(worker: Worker, response: str, gold: str) -> Graded:
    """The grade by one gold answer; undecided if that, or the machine, is at fault."""
    reply, reason = worker.judge((gold, response), (gold, f"\\boxed{{{gold}}}"))
    if reply is None:
        return Graded(math.nan, None, reason, None)
    correct, answer = reply or (False, None)  # False: the answer is why there is no verdict
    return Graded(float(correct), correct, reason, answer)
