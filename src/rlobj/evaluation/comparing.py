"""Compare two evaluations of the same problems: the difference, problem by problem.

Most of the variance of accuracies is the variance of the problems, which both models share; pairing
removes it (Miller 2024, arXiv:2411.00640, section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, DataError
from rlobj.evaluation import estimators
from rlobj.evaluation.identity import differences
from rlobj.evaluation.report.tables import UNKNOWN, percent, percent_signed
from rlobj.evaluation.result import EvaluationResult
from rlobj.evaluation.samples import GradedBenchmark, GradedProblem, Samples
from rlobj.reporting import escaped, markdown_table

NAMED = 5
"""Ids that a message names."""
MOST_FLIPS = 20
"""Problems that changed sides in a table."""


@dataclass(frozen=True)
class Flip:
    """A problem that one model mostly solves and the other does not.

    Attributes:
        id: of the problem.
        share_a: of right responses of A.
        share_b: of right responses of B.
    """

    id: str
    share_a: float
    share_b: float

    @property
    def difference(self) -> float:
        """share_a − share_b."""
        return self.share_a - self.share_b


@dataclass(frozen=True)
class Comparison:
    """d_i = p_i^A − p_i^B over the problems that both answered.

    Attributes:
        benchmark: its name.
        differences: d_i.
        accuracy_a: avg@n of A, over these problems only.
        accuracy_b: avg@n of B, over these problems only.
        difference: mean of d_i; above 0 if A is better.
        stderr: sd(d_i)/sqrt(n), over problems.
        interval: of the difference, at 95%: bootstrap over problems; nan if all d_i are equal.
        p_value: sign-flip permutation test of "no difference", two-sided.
        exact: whether the p-value is exact, not sampled.
        flips: problems with more than half of the responses right on one side only, largest
            difference first.
        only_a: ids of problems that only A answered; left out.
        only_b: ids of problems that only B answered; left out.
        undecided: ids of problems without a decided response on one side; left out.
    """

    benchmark: str
    differences: tuple[float, ...] = field(repr=False)
    accuracy_a: float
    accuracy_b: float
    difference: float
    stderr: float
    interval: estimators.Interval
    p_value: float
    exact: bool
    flips: tuple[Flip, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def problems(self) -> int:
        """Number of problems that are compared."""
        return len(self.differences)


def compare_benchmark(a: GradedBenchmark, b: GradedBenchmark, *, seed: int = 0) -> Comparison:
    """The paired difference of two evaluations of the same problems, matched by id.

    Args:
        a: one side; a positive difference is in its favour.
        b: the other side.
        seed: of the bootstrap, and of the sign flips if they are sampled.

    Raises:
        DataError: an id has another question or gold answer on the other side, or no problem is
            left to compare.
    """
    left, right = ({each.problem.id: each for each in side.problems} for side in (a, b))
    shared = [name for name in left if name in right]
    _check_same(left, right, shared)
    pairs = {name: (left[name], right[name]) for name in shared}
    decided = {name: pair for name, pair in pairs.items() if all(each.decided for each in pair)}
    if not decided:
        raise DataError(
            f"Nothing to compare: of {len(left)} and {len(right)} problems of "
            f"{a.benchmark!r} and {b.benchmark!r}, {len(shared)} have the same id and none is "
            "decided on both sides. Compare evaluations of the same benchmark."
        )
    shares = {
        name: (one.correct / one.decided, other.correct / other.decided)
        for name, (one, other) in decided.items()
    }
    differences = tuple(p - q for p, q in shares.values())
    n = len(differences)
    mean = sum(differences) / n
    test = estimators.sign_flip_test(_in_common_unit(list(decided.values())), seed=seed)
    flips = [Flip(name, p, q) for name, (p, q) in shares.items() if (p > 0.5) != (q > 0.5)]
    return Comparison(
        benchmark=a.benchmark,
        differences=differences,
        accuracy_a=sum(p for p, _ in shares.values()) / n,
        accuracy_b=sum(q for _, q in shares.values()) / n,
        difference=mean,
        stderr=estimators.standard_error(differences),
        interval=estimators.bootstrap_interval(differences, seed=seed),
        p_value=test.p_value,
        exact=test.exact,
        flips=tuple(sorted(flips, key=lambda flip: -abs(flip.difference))),
        only_a=tuple(name for name in left if name not in right),
        only_b=tuple(name for name in right if name not in left),
        undecided=tuple(name for name in shared if name not in decided),
    )


def _check_same(
    left: dict[str, GradedProblem], right: dict[str, GradedProblem], ids: list[str]
) -> None:
    for what in ("prompt", "answer"):
        other = [
            name
            for name in ids
            if getattr(left[name].problem, what).split()
            != getattr(right[name].problem, what).split()
        ]
        if other:
            word = {"prompt": "question", "answer": "gold answer"}[what]
            raise DataError(
                f"These are not the same problems: {len(other)} of {len(ids)} ids have another "
                f"{word} ({_named(other)}). Evaluate both models on the same file."
            )


def _in_common_unit(pairs: Sequence[tuple[GradedProblem, GradedProblem]]) -> list[int]:
    """The differences as integers; the unit is 1 / least common multiple of the counts."""
    multiple = math.lcm(*(each.decided for pair in pairs for each in pair))
    return [
        multiple // one.decided * one.correct - multiple // other.decided * other.correct
        for one, other in pairs
    ]


def _named(ids: Sequence[str]) -> str:
    rest = f", and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    return ", ".join(repr(name) for name in ids[:NAMED]) + rest


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
        names = f"A: {escaped(self.a)}\n\nB: {escaped(self.b)}"
        text = f"{names}\n\n{_markdown(self.benchmarks)}"
        settings = [f"- {escaped(f'{n}: {a!r} in A, {b!r} in B')}" for n, a, b in self.settings]
        return "\n".join([text, "Settings that differ:\n", *settings, ""]) if settings else text

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
        lists = " and ".join(", ".join(each) for each in (graded_a, graded_b))
        raise ConfigError(f"{name_a} and {name_b} have no benchmark in common: {lists}")
    found = tuple(compare_benchmark(graded_a[name], graded_b[name]) for name in shared)
    changed = [each for each in differences(settings_a, settings_b) if each[0][:6] != "model."]
    return EvaluationComparison(name_a, name_b, found, tuple(changed))


def _side(
    side: EvaluationResult | Path | str,
) -> tuple[str, Mapping[str, Any], dict[str, GradedBenchmark]]:
    """Name, settings, and graded responses by benchmark."""
    if isinstance(side, EvaluationResult):
        graded = {name: each.graded for name, each in side.benchmarks.items()}
        return str(side.path or side.model), side.settings, graded
    samples = Samples.open(side)
    graded = {name: samples.graded(name, those) for name, those in samples.problems().items()}
    return str(samples.path), samples.settings(), graded


def _markdown(comparisons: Sequence[Comparison]) -> str:
    """The paired differences of each benchmark, and the problems that changed sides."""
    notes = [
        "Percent of right responses, over the problems that both answered. Differences are paired: "
        "± is sd/sqrt(n) of the problems' differences, the interval resamples problems, p is a "
        "two-sided sign-flip permutation test, for each benchmark on its own."
    ]
    for each in comparisons:
        left_out = {
            "only A answered": each.only_a,
            "only B answered": each.only_b,
            "undecided on one side:": each.undecided,
        }
        notes += [
            f"{each.benchmark}: {len(ids):,} left out, {why} {_named(ids)}."
            for why, ids in left_out.items()
            if ids
        ]
    header = ["benchmark", "problems", "A", "B", "A − B", "95% interval", "p"]
    parts = [markdown_table(header, list(map(_row, comparisons))), *map(escaped, notes)]
    flips = [(each.benchmark, flip) for each in comparisons for flip in each.flips]
    if flips:
        flips.sort(key=lambda pair: -abs(pair[1].difference))
        shown = [
            [f"{name} {flip.id}", percent(flip.share_a), percent(flip.share_b)]
            for name, flip in flips[:MOST_FLIPS]
        ]
        counts = f"{len(shown)} of {len(flips)}"
        parts.append(f"Problems with most responses right on one side only ({counts}):")
        parts.append(markdown_table(["problem", "A", "B"], shown))
    return "\n\n".join(parts) + "\n"


def _row(comparison: Comparison) -> list[str]:
    """The numbers of a comparison as text, shares in percent."""
    low, high = comparison.interval[:2]
    interval = f"{percent_signed(low)} to {percent_signed(high)}"
    sign, p = "" if comparison.exact else "~", comparison.p_value
    return [
        comparison.benchmark,
        f"{comparison.problems:,}",
        percent(comparison.accuracy_a),
        percent(comparison.accuracy_b),
        f"{percent_signed(comparison.difference)} ± {percent(comparison.stderr)}",
        UNKNOWN if math.isnan(low) else interval,
        f"{sign}{p:.3f}" if p >= 0.001 else f"{sign}{p:.1g}",
    ]
