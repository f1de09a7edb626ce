"""The numbers of one benchmark, and the average over benchmarks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean
from typing import Any

from rlobj.answers.boxes import last_box
from rlobj.evaluation.estimators import (
    Estimate,
    Interval,
    StandardErrors,
    pass_at_k,
    reward_errors,
    standard_errors,
)
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.votes import MAX_RESPONSES, Votes, count_votes


@dataclass(frozen=True)
class ProblemCounts:
    """What the numbers of a benchmark need of one problem, without any text.

    Attributes:
        responses: number of responses.
        right: number of right responses.
        undecided: number of responses without a verdict.
        votes: of its responses.
        rewards: of the decided responses.
        lengths: tokens of each response, and whether it is right.
        cut: whether the length limit cut a response.
        boxed: whether a response has a closed, non-empty box.
        no_answer: whether a response is wrong because it has no answer.
        reasons: of the responses without a verdict.
        causes: of the responses that are wrong although nothing was compared.
    """

    responses: int
    right: int
    undecided: int
    votes: Votes
    rewards: tuple[float, ...]
    lengths: tuple[tuple[int, bool | None], ...]
    cut: tuple[bool, ...]
    boxed: tuple[bool, ...]
    no_answer: tuple[bool, ...]
    reasons: tuple[str, ...]
    causes: tuple[str, ...]

    @classmethod
    def of(cls, problem: GradedProblem) -> ProblemCounts:
        """Count the graded responses of a problem."""
        responses, grades = problem.responses, problem.grades
        return cls(
            responses=len(grades),
            right=problem.correct,
            undecided=problem.undecided,
            votes=count_votes(problem),
            rewards=problem.rewards,
            lengths=tuple((response.length, response.grade.correct) for response in responses),
            cut=tuple(response.finish == "length" for response in responses),
            boxed=tuple(last_box(response.text) is not None for response in responses),
            no_answer=tuple(grade.no_answer for grade in grades),
            reasons=tuple(grade.reason for grade in grades if grade.undecided),
            causes=tuple(grade.cause for grade in grades if grade.cause is not None),
        )


@dataclass(frozen=True)
class BenchmarkSummary:
    """The numbers of one benchmark. Undecided responses count as wrong, and enter no mean reward.

    Attributes:
        benchmark: its name.
        counts: of each problem.
        says_right: the grader says which responses are right. Otherwise the numbers of right
            responses mean nothing, and `estimate` is the mean reward.
    """

    benchmark: str
    counts: tuple[ProblemCounts, ...] = field(repr=False)
    says_right: bool = True

    def _every(self, part: str) -> list[Any]:
        """A part of the counts, of all problems together."""
        return [value for problem in self.counts for value in getattr(problem, part)]

    @property
    def problems(self) -> int:
        """Number of problems."""
        return len(self.counts)

    @property
    def responses(self) -> int:
        """Number of responses of all problems."""
        return sum(problem.responses for problem in self.counts)

    @property
    def samples_per_problem(self) -> int:
        """n of avg@n: the largest number of responses of a problem."""
        return max((problem.responses for problem in self.counts), default=0)

    @cached_property
    def rewards(self) -> tuple[tuple[float, ...], ...]:
        """The rewards of the decided responses of each problem that has any."""
        return tuple(problem.rewards for problem in self.counts if problem.rewards)

    @cached_property
    def estimate(self) -> Estimate:
        """avg@n: the mean over problems of their share of right responses; or the mean reward."""
        if not self.says_right:
            return Estimate(tuple(map(fmean, self.rewards)), shares=False)
        return Estimate(tuple(problem.right / problem.responses for problem in self.counts))

    @property
    def accuracy(self) -> float:
        """avg@n; nan without problems, or if nothing says which responses are right."""
        return self.estimate.mean if self.says_right else math.nan

    @property
    def interval(self) -> Interval:
        """95% interval of `estimate`, for problems like these."""
        return self.estimate.interval

    @property
    def standard_errors(self) -> StandardErrors:
        """(sampling, problems) of `estimate`."""
        if not self.says_right:
            return reward_errors(self.rewards)
        return standard_errors([p.right for p in self.counts], [p.responses for p in self.counts])

    @property
    def undecided(self) -> int:
        """Number of responses without a verdict."""
        return sum(problem.undecided for problem in self.counts)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The reported k: 1, 2, 4, ... and n."""
        n = self.samples_per_problem
        return (*(2**i for i in range(n.bit_length()) if 2**i < n), n)

    @cached_property
    def pass_at(self) -> dict[int, Estimate]:
        """pass@k by k = 1, 2, 4, ... and n; empty if nothing says which responses are right."""
        sizes = self.sizes if self.says_right else ()
        return {k: estimate for k in sizes if (estimate := self.pass_at_k(k)).values}

    @cached_property
    def maj_at(self) -> dict[int, Estimate]:
        """maj@k by k = 2, 4, ... and n; empty if the grader gives no answers."""
        return {k: estimate for k in self.sizes[1:] if (estimate := self.maj_at_k(k)).values}

    def pass_at_k(self, k: int) -> Estimate:
        """Unbiased pass@k for any k, over the problems with at least k responses."""
        able = [problem for problem in self.counts if problem.responses >= k]
        return Estimate(tuple(pass_at_k(p.responses, p.right, k) for p in able))

    def maj_at_k(self, k: int) -> Estimate:
        """maj@k for any k, over the problems with at least k responses; see `votes`."""
        votes = [problem.votes for problem in self.counts]
        if not any(vote.right or vote.wrong for vote in votes):  # the grader gives no answers
            return Estimate(())
        able = [vote for vote in votes if k <= vote.responses <= MAX_RESPONSES]
        return Estimate(tuple(vote.majority_at(k) for vote in able))

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Every number that applies, by its name in results.json.

        Where nothing says which responses are right, there are no numbers of right responses.
        """
        counts, n = self.counts, self.samples_per_problem
        main = f"avg@{n}" if self.says_right else "reward"
        numbers = {
            "problems": self.problems,
            "samples": n,
            "responses": self.responses,
            **headline(main, self.estimate),
            f"{main}_stderr_sampling": self.standard_errors.sampling,
            f"{main}_interval_method": self.interval.method,
        }
        estimates = {f"pass@{k}": estimate for k, estimate in self.pass_at.items()}
        for name, estimate in (estimates | {f"maj@{k}": e for k, e in self.maj_at.items()}).items():
            numbers |= headline(name, estimate)
            if estimate.problems < self.problems:
                numbers[f"{name}_problems"] = estimate.problems
        lengths = self._every("lengths")
        tokens = [length for length, _ in lengths]
        numbers |= {
            "undecided": self.undecided,
            "truncated": _mean(self._every("cut")),
            "format": _mean(self._every("boxed")),
            "undecided_reasons": _counted(self._every("reasons")),
            "length_mean": _mean(tokens),
            "length_median": float(statistics.median(tokens)) if tokens else math.nan,
        }
        if self.says_right:
            possible = _mean([(p.right + p.undecided) / p.responses for p in counts])
            every = [self.pass_at_k(k) for k in range(1, n + 1)]
            numbers |= {
                f"{main}_bounds": [self.accuracy, possible],
                "pass@k": [estimate.mean for estimate in every if estimate.values],
                "solve_all": sum(p.right == p.responses for p in counts),
                "solve_none": sum(p.right == 0 for p in counts),
                "no_answer": _mean(self._every("no_answer")),
                "wrong_causes": _counted(self._every("causes")),
                "length_right": _mean([length for length, right in lengths if right is True]),
                "length_wrong": _mean([length for length, right in lengths if right is False]),
            }
        return numbers

    def metrics(self) -> dict[str, float]:
        """Flat names for metrics.jsonl."""
        errors, name = self.standard_errors, "accuracy" if self.says_right else "reward"
        return {
            f"eval/{name}": self.estimate.mean,
            f"eval/{name}_se_samples": errors.sampling,
            f"eval/{name}_se_problems": errors.problems,
            "eval/problems": float(self.problems),
            "eval/undecided": float(self.undecided),
            "eval/length_mean": _mean([length for length, _ in self._every("lengths")]),
            "eval/truncated": _mean(self._every("cut")),
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """One benchmark's graded responses, their summary and their settings.

    Attributes:
        graded: the problems with their graded responses.
        summary: the numbers.
        settings: everything that changes a number, ready for JSON: temperature, template, ...
    """

    graded: GradedBenchmark
    summary: BenchmarkSummary
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class MacroAverage:
    """The mean of several benchmarks' accuracies or rewards; each counts once, whatever its size.

    Attributes:
        benchmarks: their names.
        mean: of avg@n, or of the mean reward; nan if benchmarks have both.
        standard_errors: sqrt(Σ se²)/B: the benchmarks are independent.
        interval: at 95%.
    """

    benchmarks: tuple[str, ...]
    mean: float
    standard_errors: StandardErrors
    interval: Interval

    @property
    def stderr(self) -> float:
        """For problems like these."""
        return self.standard_errors.problems


def summarise(graded: GradedBenchmark) -> BenchmarkSummary:
    """Compute the numbers of one benchmark from its problems with their graded responses."""
    counts = tuple(map(ProblemCounts.of, graded.problems))
    return BenchmarkSummary(graded.benchmark, counts, graded.says_right)


def macro_average(summaries: Sequence[BenchmarkSummary]) -> MacroAverage:
    """The mean of the benchmarks' accuracies, or of their mean rewards.

    Its interval comes from those of the benchmarks: each half-width, divided by their number, is
    added in quadrature, the lower ones and the upper ones by themselves (MOVER: Zou & Donner 2008).

    Args:
        summaries: at least one.
    """
    count, errors = len(summaries), [summary.standard_errors for summary in summaries]
    alike = len({summary.says_right for summary in summaries}) == 1
    mean = sum(summary.estimate.mean for summary in summaries) / count if alike else math.nan
    pairs = [(summary.estimate.mean, summary.interval) for summary in summaries]

    def combined(parts: Iterable[float]) -> float:
        return math.sqrt(sum(part**2 for part in parts)) / count

    low, high = (combined(m - i.low for m, i in pairs), combined(i.high - m for m, i in pairs))
    methods = dict.fromkeys(interval.method for _, interval in pairs)
    return MacroAverage(
        tuple(summary.benchmark for summary in summaries),
        mean,
        StandardErrors(combined(e.sampling for e in errors), combined(e.problems for e in errors)),
        Interval(mean - low, mean + high, ", ".join(methods)),
    )


def average_numbers(summaries: Sequence[BenchmarkSummary]) -> dict[str, Any]:
    """The numbers of the average of several, by name; none of one, or of accuracies and rewards."""
    if len(summaries) < 2 or not math.isfinite((macro := macro_average(summaries)).mean):
        return {}
    name = "avg" if summaries[0].says_right else "reward"
    sampling = {f"{name}_stderr_sampling": macro.standard_errors.sampling}
    return {"benchmarks": list(macro.benchmarks), **headline(name, macro), **sampling}


def headline(name: str, estimate: Estimate | MacroAverage) -> dict[str, Any]:
    """A mean with its standard error and interval, both over problems."""
    interval = list(estimate.interval[:2])
    return {name: estimate.mean, f"{name}_stderr": estimate.stderr, f"{name}_interval": interval}


def _counted(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
