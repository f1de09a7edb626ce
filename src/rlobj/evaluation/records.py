"""What an evaluation consists of: responses, their grades, and the problems they belong to.

A response and its grade are kept apart: a response is expensive and final, and a grade can be
computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlobj.data import Problem
from rlobj.rewards import Graded


@dataclass(frozen=True)
class ResponseRecord:
    """One response to one problem.

    Attributes:
        sample: its index among the problem's responses, from 0.
        seed: of sampling; the same seed, prompt, weights and engine give the response again.
        text: the response.
        tokens: its length, the EOS token included; None if it is not known.
        finish: "stop": an EOS token or a stop string; "length": cut at `max_tokens`; None if it is
            not known.
    """

    sample: int
    seed: int
    text: str
    tokens: int | None
    finish: Literal["stop", "length"] | None


@dataclass(frozen=True)
class GradedProblem:
    """A problem with its responses and their grades, in the order of `ResponseRecord.sample`."""

    problem: Problem
    responses: tuple[ResponseRecord, ...]
    grades: tuple[Graded, ...]

    @property
    def decided(self) -> int:
        """Number of responses that the grader could decide."""
        return sum(grade.correct is not None for grade in self.grades)

    @property
    def correct(self) -> int:
        """Number of responses that are right."""
        return sum(grade.correct is True for grade in self.grades)


@dataclass(frozen=True)
class GradedBenchmark:
    """One benchmark's problems with their graded responses.

    Undecided responses are counted and are in no mean. Problems may differ in the number of
    responses, and of decided ones.
    """

    benchmark: str
    problems: tuple[GradedProblem, ...]
