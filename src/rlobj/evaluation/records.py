"""What an evaluation is made of: responses, their grades, and the problems they belong to.

A response and its grade are kept apart, as are generating and grading: a response is expensive and
final, a grade can be taken again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlobj.data import Problem
from rlobj.rewards import Graded

__all__ = ["GradedBenchmark", "GradedProblem", "ResponseRecord"]


@dataclass(frozen=True)
class ResponseRecord:
    """One sampled response to one problem."""

    sample: int
    """Its place among the problem's responses, from 0."""
    seed: int
    """What it was drawn with; the same seed, prompt, weights and engine give it again."""
    text: str
    tokens: int | None
    """Its length, the EOS token included; None where it was made elsewhere and not told."""
    finish: Literal["stop", "length"] | None
    """stop: an EOS token or a stop string; length: cut at `max_tokens`; None = not told."""


@dataclass(frozen=True)
class GradedProblem:
    """A problem with its responses and their grades, in the order of `Response.sample`."""

    problem: Problem
    responses: tuple[ResponseRecord, ...]
    grades: tuple[Graded, ...]

    @property
    def decided(self) -> int:
        """Responses that the grader could decide."""
        return sum(grade.correct is not None for grade in self.grades)

    @property
    def correct(self) -> int:
        """Responses that are right."""
        return sum(grade.correct is True for grade in self.grades)


@dataclass(frozen=True)
class GradedBenchmark:
    """One benchmark's problems with their graded responses.

    Undecided responses are counted and are in no mean. Problems may differ in how many of their
    responses are decided, and, in files made elsewhere, in how many there are.
    """

    benchmark: str
    problems: tuple[GradedProblem, ...]
