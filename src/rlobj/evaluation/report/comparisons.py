"""Two models beside each other, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlobj.evaluation.paired import Comparison
from rlobj.evaluation.report.entries import UNKNOWN, percent, percent_signed
from rlobj.evaluation.report.tables import escaped, markdown_table

__all__ = ["comparison_markdown", "interval_text", "p_value_text"]

NAMED = 10
"""Ids that are listed where problems are left out."""


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
    header = ["benchmark", "problems", a, b, f"{a} − {b}", "95% interval", "p"]
    rows = [
        [
            each.benchmark,
            f"{each.problems:,}",
            percent(each.accuracy_a),
            percent(each.accuracy_b),
            f"{percent_signed(each.difference)} ± {percent(each.stderr)}",
            interval_text(each),
            p_value_text(each),
        ]
        for each in comparisons
    ]
    notes = [
        "Percent of right responses, over the problems that both answered. Differences are paired: "
        "± is sd/sqrt(n) of the problems' differences, the interval resamples problems, p is a "
        "two-sided sign-flip permutation test, for each benchmark on its own."
    ]
    for each in comparisons:
        notes += [f"{each.benchmark}: {line}." for line in _left_out(each, names)]
    parts = [markdown_table(header, rows), *map(escaped, notes)]
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


def interval_text(comparison: Comparison) -> str:
    """The interval of the difference, in percent points with their signs."""
    low, high = comparison.interval[:2]
    return UNKNOWN if math.isnan(low) else f"{percent_signed(low)} to {percent_signed(high)}"


def p_value_text(comparison: Comparison) -> str:
    """The p-value, with ~ where it was sampled."""
    sign, p = "" if comparison.exact else "~", comparison.p_value
    return f"{sign}{p:.3f}" if p >= 0.001 else f"{sign}{p:.1g}"


def _left_out(comparison: Comparison, names: tuple[str, str]) -> list[str]:
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
