"""The comparison of two evaluations on screen."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.evaluation import Comparison, EvaluationComparison
from rlobj.evaluation.report.comparisons import interval_text, p_value_text
from rlobj.evaluation.report.entries import percent, percent_signed

__all__ = ["show_comparison"]

SHOWN = 15
"""Problems that changed sides, listed for each benchmark."""


def show_comparison(console: Console, comparison: EvaluationComparison) -> None:
    """Print the differences, the problems that changed sides, and settings that differ."""
    console.print(Text.assemble(("A  ", "bold"), comparison.a, ("\nB  ", "bold"), comparison.b))
    _show_table(console, comparison.benchmarks)
    for each in comparison.benchmarks:
        _show_flips(console, each)
    if comparison.settings:
        console.print(Text("Settings that differ:", style="yellow"))
        for name, a, b in comparison.settings:
            console.print(Text(f"  {name}: {a!r} in A, {b!r} in B", style="yellow"))


def _show_table(console: Console, found: tuple[Comparison, ...]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for each in found:
        table.add_column(Text(each.benchmark), justify="right", overflow="fold")
    rows = {
        "problems": [f"{each.problems:,}" for each in found],
        "A, avg@n, %": [percent(each.accuracy_a) for each in found],
        "B, avg@n, %": [percent(each.accuracy_b) for each in found],
        "A − B": [percent_signed(each.difference) for each in found],
        "  95% interval": [interval_text(each) for each in found],
        "  ± standard error": [percent(each.stderr) for each in found],
        "p-value": [p_value_text(each) for each in found],
        "flips to A / to B": [
            f"{sum(f.difference > 0 for f in each.flips)} / "
            f"{sum(f.difference < 0 for f in each.flips)}"
            for each in found
        ],
    }
    for name, values in rows.items():
        table.add_row(name, *values, style="bold" if name == "A − B" else None)
    console.print(table)
    note = (
        "accuracies and differences in percent, paired problem by problem; p-value: sign flips of "
        "the differences, two-sided"
    )
    console.print(Text(note, style="dim"))


def _show_flips(console: Console, comparison: Comparison) -> None:
    flips = comparison.flips
    if flips:
        table = Table(
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            title=f"{comparison.benchmark}: problems mostly right on one side only",
            title_justify="left",
        )
        for title in ("problem", "A", "B", "A − B"):
            table.add_column(
                title, overflow="fold", justify="left" if title == "problem" else "right"
            )
        for flip in flips[:SHOWN]:
            shares = (percent(flip.share_a), percent(flip.share_b), percent_signed(flip.difference))
            table.add_row(Text(flip.id), *shares)
        console.print(table)
        if len(flips) > SHOWN:
            console.print(Text(f"and {len(flips) - SHOWN} more", style="dim"))
    left_out = {
        "only in A": comparison.only_a,
        "only in B": comparison.only_b,
        "undecided on one side": comparison.undecided,
    }
    for why, ids in left_out.items():
        if ids:
            text = f"{comparison.benchmark}: {len(ids)} problems left out, {why}"
            console.print(Text(text, style="yellow"))
