"""Compare two evaluations of the same problems: the difference, problem by problem.

Most of the variance of accuracies is the variance of the problems, which both models share; pairing
removes it (Miller 2024, arXiv:2411.00640, section 4.2).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, DataError
from rlobj.evaluation import estimators
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.identity import differences
from rlobj.evaluation.measures import UNKNOWN, number, number_range
from rlobj.evaluation.result import EvaluationResult
from rlobj.reporting import visible
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.runs.evaluation_samples import Samples

MOST_CHANGES = 20
"""Rows in a table of changes."""
LONGEST = 60
"""Characters of a question or an answer in a table."""


class Change(NamedTuple):
    """A problem that both models answered.

    Attributes:
        id: of the problem.
        share_a: of right responses of A, or their mean reward; share_b: of B.
        question: its text.
    """

    id: str
    share_a: float
    share_b: float
    question: str = ""

    @property
    def difference(self) -> float:
        """share_a − share_b."""
        return self.share_a - self.share_b


@dataclass(frozen=True)
class Comparison:
    """d_i = p_i^A − p_i^B over the problems that both answered; undecided responses are wrong.

    Where nothing says which responses are right, p_i is the mean reward of decided responses.

    Attributes:
        benchmark: its name.
        compared: the problems that both answered.
        shares: whether p_i are shares of right responses, and not rewards.
        p_value: of equally good models, two-sided. See `estimators.paired_p_value`.
        interval: of the difference, at 95%. See `estimators.bootstrap_interval`.
        left_out: number of problems that only one side answered.
        regraded: the problems of both sides, if one is the other graded again; else none.
    """

    benchmark: str
    compared: tuple[Change, ...] = field(repr=False)
    shares: bool
    p_value: float
    interval: estimators.Interval
    left_out: int
    regraded: tuple[tuple[GradedProblem, GradedProblem], ...] = field(repr=False, compare=False)

    @property
    def difference(self) -> float:
        """Mean of d_i; above 0 if A is better."""
        return fmean(change.difference for change in self.compared)

    @property
    def means(self) -> tuple[float, float]:
        """Of p_i^A and p_i^B, over these problems only."""
        return fmean(c.share_a for c in self.compared), fmean(c.share_b for c in self.compared)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Problems with d_i ≠ 0, largest difference first."""
        changes = filter(attrgetter("difference"), self.compared)
        return tuple(sorted(changes, key=lambda change: -abs(change.difference)))


def compare_benchmark(a: GradedBenchmark, b: GradedBenchmark) -> Comparison:
    """The paired difference of two evaluations of the same problems, matched by id.

    Args:
        a: one side; a positive difference is in its favour.
        b: the other side.

    Raises:
        DataError: an id has another question or gold answer on the other side, no problem is left
            to compare, or only one side says which responses are right.
    """
    if (says_right := a.says_right) != b.says_right:
        raise DataError(
            f"{a.benchmark}: only one side says which responses are right. Grade both with the "
            "same reward: rlobj eval regrade DIR --reward math"
        )
    sides = [[p for p in side.problems if says_right or p.rewards] for side in (a, b)]
    left, right = ({p.problem.id: p for p in side} for side in sides)
    pairs = [(left[name], right[name]) for name in left if name in right]
    if not pairs:
        raise DataError(f"Nothing to compare: both sides of {a.benchmark} share no problem id")
    for part, word in (("prompt", "question"), ("answer", "gold answer")):
        text = attrgetter(f"problem.{part}")
        other = [p.problem.id for p, q in pairs if text(p).split() != text(q).split()]
        if other:
            raise DataError(
                f"{a.benchmark}: {len(other)} of {len(pairs)} problem ids have another {word} on "
                f"the other side, such as {other[0]!r}. Evaluate both models on the same file"
            )
    compared = [
        Change(p.problem.id, p.value(says_right), q.value(says_right), p.problem.prompt)
        for p, q in pairs
    ]
    differences = [change.difference for change in compared]
    texts, others = (
        [(name, r.id, r.text) for name, p in of.items() for r in p.responses]
        for of in (left, right)
    )
    return Comparison(
        a.benchmark,
        tuple(compared),
        says_right,
        estimators.paired_p_value(differences),
        estimators.bootstrap_interval(differences),
        left_out=len(left.keys() ^ right.keys()),
        regraded=tuple(pairs) if says_right and texts == others else (),
    )


@dataclass(frozen=True)
class EvaluationComparison:
    """A minus B on every benchmark that both have. A notebook shows it as a table.

    Attributes:
        a: name of one side: its folder, or its model.
        b: name of the other side.
        benchmarks: the paired comparisons.
        settings: (setting, value in A, value in B) of settings that differ, the model aside.
    """

    a: str
    b: str
    benchmarks: tuple[Comparison, ...]
    settings: tuple[tuple[str, object, object], ...]

    def to_markdown(self) -> str:
        """The differences, the problems that changed sides, and settings that differ."""
        parts = [f"A: {escaped(self.a)}", f"B: {escaped(self.b)}", *_markdown(self.benchmarks)]
        if self.settings:
            lines = [escaped(f"{n}: {a!r} in A, {b!r} in B") for n, a, b in self.settings]
            parts += ["Settings that differ:", "\n".join(f"- {line}" for line in lines)]
        return "\n\n".join(parts) + "\n"

    _repr_markdown_ = to_markdown


def compare(
    a: EvaluationResult | Path | str, b: EvaluationResult | Path | str
) -> EvaluationComparison:
    """Compare two evaluations of the same problems, problem by problem: A minus B.

    Args:
        a: folder of an evaluation, or a result.
        b: the other one.

    Raises:
        ConfigError: a folder without an evaluation, or no benchmark that both have.
        DataError: benchmarks of the same name with other problems.
    """
    name_a, settings_a, graded_a = _side(a)
    name_b, settings_b, graded_b = _side(b)
    shared = [name for name in graded_a if name in graded_b]
    if not shared:
        raise ConfigError(f"{name_a} and {name_b} have no benchmark in common")
    comparisons = tuple(compare_benchmark(graded_a[name], graded_b[name]) for name in shared)
    changed = [c for c in differences(settings_a, settings_b) if c[0][:6] != "model."]
    for name in shared:
        a_of, b_of = (", ".join(of[name].verifiers) or "unknown" for of in (graded_a, graded_b))
        if a_of != b_of:
            changed.append((f"{name}.verifier", a_of, b_of))
    return EvaluationComparison(name_a, name_b, comparisons, tuple(changed))


def _side(
    side: EvaluationResult | Path | str,
) -> tuple[str, Mapping[str, Any], dict[str, GradedBenchmark]]:
    """Name, settings, and graded responses by benchmark."""
    if isinstance(side, EvaluationResult):
        return str(side.path or side.model), side.settings, dict(side.benchmarks)
    samples = Samples.open(side)
    graded = {
        name: GradedBenchmark.of(samples, name, those) for name, those in samples.problems().items()
    }
    return str(side), samples.settings(), graded


def _markdown(comparisons: Sequence[Comparison]) -> list[str]:
    """The paired differences of each benchmark, and the problems with the largest ones."""
    rewards = ", ".join(comparison.benchmark for comparison in comparisons if not comparison.shares)
    what = f"Mean rewards of {rewards}, else percent" if rewards else "Percent"
    notes = [
        f"{what} of right responses, over the problems that both answered. p is of a paired "
        "sign-flip permutation test, which assumes that the differences are symmetric around 0. "
        "The interval is the bootstrap's over problems (BCa).",
        *(
            f"{of.benchmark}: {of.left_out:,} problems that only one side answered are left out."
            for of in comparisons
            if of.left_out
        ),
    ]
    header = ["benchmark", "problems", "A", "B", "A − B", "95% interval", "p"]
    parts = [markdown_table(header, list(map(_row, comparisons))), *map(escaped, notes)]
    changes = [(of, change) for of in comparisons for change in of.changes]
    changes.sort(key=lambda pair: -abs(pair[1].difference))
    rows = [
        [
            visible(_named(of, change.question), LONGEST),
            number(change.share_a, of.shares),
            number(change.share_b, of.shares),
            number(change.difference, of.shares, "+"),
        ]
        for of, change in changes
    ]
    parts += _largest("Problems with different shares", ["problem", "A", "B", "A − B"], rows)
    header = ["problem", "sample", "gold", "answer", "A", "B"]
    return parts + _largest("Changed grades", header, list(_regraded(comparisons)))


def _named(comparison: Comparison, question: str) -> str:
    """The name of a problem in a table."""
    return f"{comparison.benchmark}: {' '.join(question.split())}"


def _largest(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of the first rows; nothing without rows."""
    shown = rows[:MOST_CHANGES]
    caption = f"{caption} ({len(shown)} of {len(rows):,}):"
    return [caption, markdown_table(header, shown)] if rows else []


def _regraded(comparisons: Sequence[Comparison]) -> Iterator[list[str]]:
    """The grades of the same responses that differ."""
    for comparison in comparisons:
        for a, b in comparison.regraded:
            name = _named(comparison, a.problem.prompt)
            for response, old, new in zip(a.responses, a.grades, b.grades, strict=True):
                if old.correct != new.correct:
                    answer = new.answer or old.answer or UNKNOWN
                    says = (f"{grade.verdict} ({grade.reason})" for grade in (old, new))
                    texts = (name, str(response.id), a.problem.answer, answer, *says)
                    yield [visible(text, LONGEST) for text in texts]


def _row(comparison: Comparison) -> list[str]:
    """The numbers of a comparison as text, shares in percent."""
    shares = comparison.shares
    return [
        comparison.benchmark,
        f"{len(comparison.compared):,}",
        *(number(mean, shares) for mean in comparison.means),
        number(comparison.difference, shares, "+"),
        number_range(*comparison.interval[:2], shares, "+"),
        f"{comparison.p_value:.3f}" if comparison.p_value >= 0.001 else "< 0.001",
    ]
