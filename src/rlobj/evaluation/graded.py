"""Graded responses of an evaluation, by benchmark and problem, with every number of them."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean
from typing import Any, Self

import torch

from rlobj.answers.extraction import last_box
from rlobj.data import Problem
from rlobj.evaluation.estimators import Estimate, macro_average, mean, pass_at_k, sampling_error
from rlobj.evaluation.measures import Measure, at_k, averaged, count, percent, share, tokens
from rlobj.rewards import Graded
from rlobj.rewards.kinds import NO_REWARD
from rlobj.runs.evaluation_samples import Samples
from rlobj.samplers import Response

MAX_RESPONSES = 1024
"""Of one problem: binomial coefficients of more do not fit a double."""

_SPACING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[ ,;:!]|\s+|^\$+|\$+$|\.$")
_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")


@dataclass(frozen=True)
class Votes:
    """The votes of one problem's responses.

    Attributes:
        right: for the gold answer.
        wrong: for each answer that is not known to be right.
        without_answer: responses that do not vote.
    """

    right: int
    wrong: tuple[int, ...]
    without_answer: int

    @property
    def responses(self) -> int:
        """Number of responses."""
        return self.right + sum(self.wrong) + self.without_answer

    def majority_at(self, k: int) -> float:
        """Expected value of maj@k over all subsets of k responses: P(right wins).

        Args:
            k: 1 ≤ k ≤ responses ≤ MAX_RESPONSES.
        """
        if not 1 <= k <= self.responses:
            raise ValueError(f"maj@{k} needs at least {k} responses, got {self.responses}")
        return min(1.0, _winning_probability(self.right, self.wrong, self.without_answer, k))


def count_votes(grades: Sequence[Graded]) -> Votes:
    """Count the votes of the graded responses to one problem."""
    answers = [(_plain(g.answer), g.correct) for g in grades if g.answer is not None]
    right = {answer for answer, correct in answers if correct}
    votes = Counter(answer for answer, _ in answers)
    wrong = tuple(count for answer, count in votes.items() if answer not in right)
    return Votes(len(answers) - sum(wrong), wrong, len(grades) - len(answers))


def _plain(answer: str) -> str:
    return _FRACTION.sub(r"\\frac", _SPACING.sub("", answer.strip()))


def _winning_probability(right: int, others: Sequence[int], without_answer: int, k: int) -> float:
    """P(one candidate wins among k responses drawn without replacement).

    Σ_r C(m, r) Σ_t W(k − r, t)/(1 + t) / C(all, k), where W counts the ways to draw the other k − r
    so that t candidates have r votes as well and none has more. W is a product of polynomials in
    x (responses drawn) and y (ties), for each other candidate of m' votes
    Σ_{v<r} C(m', v) x^v + y C(m', r) x^r; the candidates with fewer than r votes and the responses
    without an answer are (1 + x)^m' together. All terms are positive: no digits are lost.
    """
    total = right + sum(others) + without_answer
    probability = 0.0
    for r in range(max(1, k - (total - right)), min(right, k) + 1):
        rivals = [size for size in others if size >= r]
        rest, free = total - right - sum(rivals), k - r
        ties = min(len(rivals), free // r)
        ways = torch.zeros(ties + 1, free + 1, dtype=torch.float64)
        for drawn in range(min(rest, free) + 1):
            ways[0, drawn] = float(math.comb(rest, drawn))
        for size in rivals:
            wider = ways.clone()
            for votes in range(1, min(r, free + 1)):
                wider[:, votes:] += float(math.comb(size, votes)) * ways[:, : free + 1 - votes]
            if r <= free:
                wider[1:, r:] += float(math.comb(size, r)) * ways[:-1, : free + 1 - r]
            ways = wider
        shares = ways[:, free] / torch.arange(1, ties + 2, dtype=torch.float64)
        probability += float(math.comb(right, r)) * float(shares.sum())
    return probability / float(math.comb(total, k))


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
    def rewards(self) -> tuple[float, ...]:
        """The rewards of the decided responses."""
        return tuple(grade.reward for grade in self.grades if not grade.undecided)

    @cached_property
    def votes(self) -> Votes:
        """The votes of the responses for their answers."""
        return count_votes(self.grades)

    def without_texts(self) -> "GradedProblem":
        """Its id with the grades and lengths of its responses: what the ranks of a run exchange."""
        responses = (
            replace(r, text="", turns=(), grade=replace(r.grade, answer=None, feedback=""))
            for r in self.responses
        )
        return GradedProblem(Problem(self.problem.id, "", ""), tuple(responses))

    def value(self, says_right: bool) -> float:
        """The share of right responses, or else the mean of `rewards`; nan without any."""
        return self.correct / len(self.grades) if says_right else fmean(self.rewards or [math.nan])


@dataclass(frozen=True)
class GradedBenchmark:
    """One benchmark's problems with their graded responses, and the numbers of these.

    Undecided responses count as wrong, and enter no mean reward. Problems may have different
    numbers of responses.

    Attributes:
        benchmark: its name.
        problems: the problems.
        settings: everything that changes a number, ready for JSON: temperature, template, ...
        verdicts: whether the grader says which responses are right; None = as the grades show it.
    """

    benchmark: str
    problems: tuple[GradedProblem, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    verdicts: bool | None = None

    @classmethod
    def of(cls, samples: Samples, benchmark: str, problems: Iterable[Problem]) -> Self:
        """Those that are stored of a benchmark; problems without a grade are left out."""
        grades = samples.grades
        by_problem: dict[str, list[Any]] = {}
        for key in sorted(key for key in grades if key[0] == benchmark):
            by_problem.setdefault(key[1], []).append(key)
        graded = []
        for problem in problems:
            if of_problem := by_problem.get(problem.id):
                responses = (replace(samples.responses[k], grade=grades[k]) for k in of_problem)
                graded.append(GradedProblem(problem, tuple(responses)))
        return cls(benchmark, tuple(graded))

    @cached_property
    def responses(self) -> list[Response]:
        """The responses to all problems."""
        return [response for problem in self.problems for response in problem.responses]

    @cached_property
    def says_right(self) -> bool:
        """Whether each grade that has a reward says whether the response is right.

        Otherwise the numbers of right responses mean nothing, and mean rewards take their place.
        Without any reward nobody knows it of a function; all other graders would say it. An
        environment gives no verdict on a conversation that was cut, which counts as wrong.
        """
        if self.verdicts is not None:
            return self.verdicts
        verdicts = [
            response.grade.correct
            for response in self.responses
            if not response.grade.undecided and not response.cut_without_verdict
        ]
        if verdicts:
            return None not in verdicts
        alone = ("custom", NO_REWARD)
        return not any(response.grade.reason.endswith(alone) for response in self.responses)

    @property
    def verifiers(self) -> tuple[str, ...]:
        """The versions of the verifier that gave the grades; empty if none is known."""
        versions = {response.grade.verifier for response in self.responses}
        return tuple(sorted(v or "unknown" for v in versions)) if versions - {None} else ()

    @property
    def samples(self) -> int:
        """n of avg@n: the largest number of responses of a problem."""
        return max((len(problem.responses) for problem in self.problems), default=0)

    @cached_property
    def estimate(self) -> Estimate:
        """avg@n: the mean over problems of their share of right responses; or the mean reward."""
        rows: list[Sequence[float]] = [problem.rewards for problem in self.problems]
        if self.says_right:
            rows = [[int(g.correct is True) for g in problem.grades] for problem in self.problems]
        rows = [row for row in rows if row]
        return Estimate(tuple(map(fmean, rows)), self.says_right, sampling_error(rows))

    @property
    def accuracy(self) -> float:
        """avg@n; nan without problems, or if nothing says which responses are right."""
        return self.estimate.mean if self.says_right else math.nan

    def pass_at_k(self, k: int) -> Estimate:
        """Unbiased pass@k for any k, over the problems with at least k responses."""
        able = [problem for problem in self.problems if len(problem.responses) >= k]
        return Estimate(tuple(pass_at_k(len(p.responses), p.correct, k) for p in able))

    def maj_at_k(self, k: int) -> Estimate:
        """maj@k for any k, over the problems with at least k responses; see `votes`."""
        votes = [problem.votes for problem in self.problems]
        if not any(vote.right or vote.wrong for vote in votes):  # the grader gives no answers
            return Estimate(())
        able = [vote for vote in votes if k <= vote.responses <= MAX_RESPONSES]
        return Estimate(tuple(vote.majority_at(k) for vote in able))

    @cached_property
    def measures(self) -> list[Measure]:
        """Every number that applies, in the order of the tables.

        Where nothing says which responses are right, there are no numbers of right responses.
        """
        n, responses = self.samples, self.responses
        name, row = (f"avg@{n}", "avg@n") if self.says_right else ("reward", "mean reward")
        reasons = [response.grade.reason for response in responses if response.grade.undecided]
        lengths = [response.length for response in responses]
        cut = mean([response.finish == "length" for response in responses])
        boxed = mean([last_box(response.text) is not None for response in responses])
        median = float(statistics.median(lengths)) if lengths else math.nan
        measures = [
            count("problems", len(self.problems), "problems"),
            count("samples", n, "n"),
            Measure("responses", len(responses)),
            *averaged(name, row, self.estimate),
            Measure(f"{name}_interval_method", self.estimate.interval.method),
            *(self._of_right_responses(name) if self.says_right else ()),
            count("undecided", len(reasons), "responses, undecided"),
            Measure("undecided_reasons", dict(Counter(reasons).most_common())),
            share("truncated", cut, "% of responses, cut at the limit"),
            share("format", boxed, r"% of responses, with a \boxed answer"),
            tokens("length_mean", mean(lengths), "tokens, mean"),
            tokens("length_median", median, "tokens, median"),
        ]
        if self.says_right:
            for verdict, word in ((True, "right"), (False, "wrong")):
                those = [each.length for each in responses if each.grade.correct is verdict]
                measures.append(tokens(f"length_{word}", mean(those), f"tokens, {word}"))
        return measures

    def _of_right_responses(self, name: str) -> list[Measure]:
        """avg@n if undecided responses were right, pass@k, maj@k, what was solved, and why not."""
        problems, n = self.problems, self.samples
        grades = [response.grade for response in self.responses]
        causes = Counter(grade.cause for grade in grades if grade.cause is not None)
        absent = mean([grade.no_answer for grade in grades])
        possible = mean([(p.correct + p.undecided) / len(p.responses) for p in problems])
        undecided = any(problem.undecided for problem in problems)
        row = "avg@n if undecided ones were right" if undecided else ""
        measures = [Measure(f"{name}_bounds", [self.accuracy, possible], row, percent(possible))]
        sizes = (*(2**i for i in range(n.bit_length()) if 2**i < n), n)
        every = [self.pass_at_k(k) for k in range(1, n + 1)]
        for k, estimate in enumerate(every, 1):
            if k in sizes:
                row = f"pass@{k}" if k > 1 else ""
                measures += at_k(f"pass@{k}", row, estimate, len(problems))
        for k in sizes[1:]:
            if (majority := self.maj_at_k(k)).values:
                measures += at_k(f"maj@{k}", f"maj@{k}", majority, len(problems))
        solved = sum(problem.correct == len(problem.responses) for problem in problems)
        unsolved = sum(problem.correct == 0 for problem in problems)
        return [
            *measures,
            Measure("pass@k", [estimate.mean for estimate in every]),
            count("solve_all", solved, "problems, all responses right"),
            count("solve_none", unsolved, "problems, no response right"),
            Measure("wrong_causes", dict(causes.most_common())),
            share("no_answer", absent, "% of responses, without an answer"),
        ]

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """Every number that applies, by its name in results.json."""
        return {measure.name: measure.value for measure in self.measures}

    def metrics(self) -> dict[str, float]:
        """Flat names for metrics.jsonl."""
        name = "accuracy" if self.says_right else "reward"
        return {
            f"eval/{name}": self.estimate.mean,
            f"eval/{name}_se_samples": self.estimate.stderr_sampling,
            f"eval/{name}_se_problems": self.estimate.stderr,
            "eval/problems": float(len(self.problems)),
            "eval/undecided": float(sum(problem.undecided for problem in self.problems)),
            "eval/length_mean": mean([response.length for response in self.responses]),
            "eval/truncated": mean([response.finish == "length" for response in self.responses]),
        }


def average(benchmarks: Sequence[GradedBenchmark]) -> list[Measure]:
    """The average of several benchmarks; nothing of one, or of accuracies and rewards."""
    macro = macro_average([benchmark.estimate for benchmark in benchmarks])
    if len(benchmarks) < 2 or not math.isfinite(macro.mean):
        return []
    name, row = ("avg", "avg@n") if macro.shares else ("reward", "mean reward")
    names = [benchmark.benchmark for benchmark in benchmarks]
    return [Measure("benchmarks", names), *averaged(name, row, macro)]
