"""The numbers of one benchmark, and the average over benchmarks."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
class Lengths:
    """Tokens per response; nan without any.

    Attributes:
        mean: over all responses.
        median: over all responses.
        right: mean over right responses.
        wrong: mean over wrong responses, the truncated ones included, the undecided ones not.
    """

    mean: float
    median: float
    right: float
    wrong: float


@dataclass(frozen=True)
class BenchmarkSummary:
    """The numbers of one benchmark. Undecided responses count as wrong, and enter no mean reward.

    Attributes:
        benchmark: its name.
        problems: number of problems.
        responses: number of responses of all problems.
        samples_per_problem: n of avg@n: the largest number of responses of a problem.
        counts: (responses, right, undecided) of each problem.
        votes: of the same problems; empty if the grader gives no answers.
        truncated: share of responses cut at the length limit.
        format: share of responses with a closed, non-empty box.
        no_answer: share of responses that are wrong because they have no answer that can be read.
        undecided_reasons: number of responses without a verdict, by reason.
        wrong_causes: number of responses that are wrong although nothing was compared, by cause.
        lengths: tokens per response.
        rewards: of the decided responses of each problem that has any.
        says_right: the grader says which responses are right. Otherwise the numbers of right
            responses mean nothing, and `estimate` is the mean reward.
    """

    benchmark: str
    problems: int
    responses: int
    samples_per_problem: int
    counts: tuple[tuple[int, int, int], ...] = field(repr=False)
    votes: tuple[Votes, ...] = field(repr=False)
    truncated: float
    format: float
    no_answer: float
    undecided_reasons: Mapping[str, int]
    wrong_causes: Mapping[str, int]
    lengths: Lengths
    rewards: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    says_right: bool = True

    @cached_property
    def estimate(self) -> Estimate:
        """avg@n: the mean over problems of their share of right responses; or the mean reward."""
        if not self.says_right:
            return Estimate(tuple(map(fmean, self.rewards)), shares=False)
        return Estimate(tuple(right / count for count, right, _ in self.counts))

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
        return standard_errors([c for _, c, _ in self.counts], [k for k, *_ in self.counts])

    @property
    def undecided(self) -> int:
        """Number of responses without a verdict."""
        return sum(self.undecided_reasons.values())

    @property
    def bounds(self) -> tuple[float, float]:
        """avg@n if all undecided responses are wrong, as in `accuracy`, and if all are right."""
        return self.accuracy, _mean([(right + none) / count for count, right, none in self.counts])

    @property
    def solve_all(self) -> int:
        """Number of problems whose responses are all right."""
        return sum(right == count for count, right, _ in self.counts)

    @property
    def solve_none(self) -> int:
        """Number of problems without a right response."""
        return sum(right == 0 for _, right, _ in self.counts)

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
        values = [pass_at_k(count, right, k) for count, right, _ in self.counts if count >= k]
        return Estimate(tuple(values))

    def maj_at_k(self, k: int) -> Estimate:
        """maj@k for any k, over the problems with at least k responses; see `votes`."""
        able = [votes for votes in self.votes if k <= votes.responses <= MAX_RESPONSES]
        return Estimate(tuple(votes.majority_at(k) for votes in able))

    def metrics(self) -> dict[str, float]:
        """Flat names for metrics.jsonl."""
        errors, name = self.standard_errors, "accuracy" if self.says_right else "reward"
        return {
            f"eval/{name}": self.estimate.mean,
            f"eval/{name}_se_samples": errors.sampling,
            f"eval/{name}_se_problems": errors.problems,
            "eval/problems": float(self.problems),
            "eval/undecided": float(self.undecided),
            "eval/length_mean": self.lengths.mean,
            "eval/truncated": self.truncated,
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


@dataclass(frozen=True)
class ProblemCounts:
    """What the numbers of a benchmark need of one problem, without any text.

    Attributes:
        counts: (responses, right, undecided).
        votes: of its responses.
        rewards: of the decided responses.
        lengths: tokens of each response, and whether it is right.
        cut: whether the length limit cut a response.
        boxed: whether a response has a closed, non-empty box.
        no_answer: whether a response is wrong because it has no answer.
        reasons: of the responses without a verdict.
        causes: of the responses that are wrong although nothing was compared.
    """

    counts: tuple[int, int, int]
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
            counts=(len(grades), problem.correct, problem.undecided),
            votes=count_votes(problem),
            rewards=problem.rewards,
            lengths=tuple((response.length, response.grade.correct) for response in responses),
            cut=tuple(response.finish == "length" for response in responses),
            boxed=tuple(last_box(response.text) is not None for response in responses),
            no_answer=tuple(grade.no_answer for grade in grades),
            reasons=tuple(grade.reason for grade in grades if grade.undecided),
            causes=tuple(grade.cause for grade in grades if grade.cause is not None),
        )


def summarise(graded: GradedBenchmark) -> BenchmarkSummary:
    """Compute the numbers of one benchmark from its problems with their graded responses."""
    counts = [ProblemCounts.of(problem) for problem in graded.problems]
    return summarise_counts(graded.benchmark, counts, graded.says_right)


def summarise_counts(
    benchmark: str, problems: Sequence[ProblemCounts], says_right: bool
) -> BenchmarkSummary:
    """Compute the numbers of one benchmark from the counts of its problems."""
    counts = tuple(problem.counts for problem in problems)
    reasons = Counter(reason for problem in problems for reason in problem.reasons)
    causes = Counter(cause for problem in problems for cause in problem.causes)
    votes = tuple(problem.votes for problem in problems)
    return BenchmarkSummary(
        benchmark=benchmark,
        problems=len(problems),
        responses=sum(count for count, *_ in counts),
        samples_per_problem=max((count for count, *_ in counts), default=0),
        counts=counts,
        votes=votes if any(vote.right or vote.wrong for vote in votes) else (),
        truncated=_mean([cut for problem in problems for cut in problem.cut]),
        format=_mean([boxed for problem in problems for boxed in problem.boxed]),
        no_answer=_mean([missing for problem in problems for missing in problem.no_answer]),
        undecided_reasons=dict(reasons.most_common()),
        wrong_causes=dict(causes.most_common()),
        lengths=_lengths([length for problem in problems for length in problem.lengths]),
        rewards=tuple(problem.rewards for problem in problems if problem.rewards),
        says_right=says_right,
    )


def macro_average(summaries: Sequence[BenchmarkSummary]) -> MacroAverage:
    """The mean of the benchmarks' accuracies, or of their mean rewards.

    Its interval comes from those of the benchmarks: each half-width, divided by their number, is
    added in quadrature, the lower ones and the upper ones by themselves (MOVER: Zou & Donner 2008).

    Args:
        summaries: at least one.
    """
    count = len(summaries)
    alike = len({summary.says_right for summary in summaries}) == 1
    mean = sum(summary.estimate.mean for summary in summaries) / count if alike else math.nan

    def combined(part: Callable[[BenchmarkSummary], float]) -> float:
        return math.sqrt(sum(part(summary) ** 2 for summary in summaries)) / count

    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    return MacroAverage(
        benchmarks=tuple(summary.benchmark for summary in summaries),
        mean=mean,
        standard_errors=StandardErrors(
            combined(lambda summary: summary.standard_errors.sampling),
            combined(lambda summary: summary.standard_errors.problems),
        ),
        interval=Interval(
            mean - combined(lambda summary: summary.estimate.mean - summary.interval.low),
            mean + combined(lambda summary: summary.interval.high - summary.estimate.mean),
            ", ".join(methods),
        ),
    )


def _lengths(tokens: Sequence[tuple[int, bool | None]]) -> Lengths:
    every = [count for count, _ in tokens]
    return Lengths(
        mean=_mean(every),
        median=float(statistics.median(every)) if every else math.nan,
        right=_mean([count for count, correct in tokens if correct is True]),
        wrong=_mean([count for count, correct in tokens if correct is False]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
