"""Two evaluations beside each other: their numbers as text, and a Markdown table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlobj.evaluation.paired import Comparison
from rlobj.evaluation.report.measures import UNKNOWN, percent, percent_signed
from rlobj.reporting import escaped, markdown_table

NAMED = 10
"""Ids that are listed of problems that are left out."""


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


def _left_out(comparison: Comparison, names: tuple[str, str] = ("A", "B")) -> list[str]:
    """A line on each kind of problems that are left out."""
    sides = (
        (f"only {names[0]} answered", comparison.only_a),
        (f"only {names[1]} answered", comparison.only_b),
        ("undecided on one side:", comparison.undecided),
    )
    return [
        f"{len(ids):,} left out, {why} {', '.join(ids[:NAMED])}{', ...' * (len(ids) > NAMED)}"
        for why, ids in sides
        if ids
    ]


def comparison_markdown(
    comparisons: Sequence[Comparison], names: tuple[str, str] = ("A", "B"), *, flips: int = 20
) -> str:
    """The paired differences of each benchmark, and the problems that changed sides.

    Args:
        comparisons: one per benchmark.
        names: of the two models.
        flips: the most problems to list, largest difference first.
    """
    a, b = names
    notes = [
        "Percent of right responses, over the problems that both answered. Differences are paired: "
        "± is sd/sqrt(n) of the problems' differences, the interval resamples problems, p is a "
        "two-sided sign-flip permutation test, for each benchmark on its own."
    ]
    notes += [
        f"{each.benchmark}: {line}." for each in comparisons for line in _left_out(each, names)
    ]
    header = ["benchmark", "problems", a, b, f"{a} − {b}", "95% interval", "p"]
    parts = [markdown_table(header, list(map(_row, comparisons))), *map(escaped, notes)]
    changed = [(each.benchmark, flip) for each in comparisons for flip in each.flips]
    if changed:
        changed.sort(key=lambda pair: -abs(pair[1].difference))
        listed = [
            [f"{name} {flip.id}", percent(flip.share_a), percent(flip.share_b)]
            for name, flip in changed[:flips]
        ]
        shown = f"{min(flips, len(changed))} of {len(changed)}"
        parts.append(f"Problems with most responses right on one side only ({shown}):")
        parts.append(markdown_table(["problem", a, b], listed))
    return "\n\n".join(parts) + "\n"
