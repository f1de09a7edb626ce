"""Graded responses of an evaluation, by benchmark and problem, as all its numbers read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from rlobj.data import Problem
from rlobj.rewards import Graded
from rlobj.runs.evaluation_samples import Samples
from rlobj.samplers import Response


@dataclass(frozen=True)
class GradedProblem:
    """A problem with its graded responses, in the order of their ids."""

    problem: Problem
    responses: tuple[Response, ...]

    @property
    def grades(self) -> tuple[Graded, ...]:
        """The grades of the responses."""
        return tuple(response.grade for response in self.responses)

    @property
    def correct(self) -> int:
        """Number of responses that are right."""
        return sum(grade.correct is True for grade in self.grades)

    @property
    def undecided(self) -> int:
        """Number of responses that the grader could not decide; they count as wrong."""
        return sum(grade.undecided for grade in self.grades)

    @property
    def share(self) -> float:
        """The share of right responses."""
        return self.correct / len(self.grades)

    @property
    def rewards(self) -> tuple[float, ...]:
        """The rewards of the decided responses."""
        return tuple(grade.reward for grade in self.grades if not grade.undecided)

    def value(self, says_right: bool) -> float:
        """The share of right responses, or else the mean of `rewards`; nan without any."""
        return self.share if says_right else fmean(self.rewards or [math.nan])


@dataclass(frozen=True)
class GradedBenchmark:
    """One benchmark's problems with their graded responses; their numbers may differ."""

    benchmark: str
    problems: tuple[GradedProblem, ...]

    @classmethod
    def of(cls, samples: Samples, benchmark: str, problems: Iterable[Problem]) -> GradedBenchmark:
        """Those that are stored of a benchmark; problems without a grade are left out."""
        grades = samples.grades
        keys = sorted(key for key in grades if key[0] == benchmark)
        by_problem = {name: list(those) for name, those in groupby(keys, itemgetter(1))}
        graded = []
        for problem in problems:
            if of_problem := by_problem.get(problem.id):
                responses = (replace(samples.responses[k], grade=grades[k]) for k in of_problem)
                graded.append(GradedProblem(problem, tuple(responses)))
        return cls(benchmark, tuple(graded))

    @property
    def says_right(self) -> bool:
        """Whether each grade that has a reward says whether the response is right.

        Without any reward nobody knows it of a function; all other graders would say it. An
        environment gives no verdict on a conversation that was cut, which counts as wrong.
        """
        responses = [response for problem in self.problems for response in problem.responses]
        verdicts = [
            response.grade.correct
            for response in responses
            if not response.grade.undecided and not response.cut_without_verdict
        ]
        if verdicts:
            return None not in verdicts
        return not any(response.grade.reason.endswith("custom") for response in responses)

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The versions of the verifier that gave the grades; empty if none is known."""
        versions = {grade.verifier for problem in self.problems for grade in problem.grades}
        return tuple(sorted(v or "unknown" for v in versions)) if versions - {None} else ()
