"""`rlobj eval compare` on screen and as Markdown."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError, RunError
from rlobj.evaluation import Comparison, EvaluationDirectory, compare
from rlobj.evaluation.identity import differences
from rlobj.evaluation.report import comparison_markdown
from rlobj.evaluation.report.comparisons import interval_text, p_value_text
from rlobj.evaluation.report.entries import percent, percent_signed

__all__ = ["show_comparison"]

SHOWN = 15
"""Flips that are listed for each benchmark."""


def show_comparison(
    console: Console, a: EvaluationDirectory, b: EvaluationDirectory, out: Path | None
) -> None:
    """A minus B on every benchmark that both hold.

    Raises:
        ConfigError: they have no benchmark in common.
        DataError: benchmarks of the same name with other problems.
    """
    names = [str(each.path) for each in (a, b)]
    theirs = a.problems(), b.problems()
    shared = [name for name in theirs[0] if name in theirs[1]]
    if not shared:
        lists = " and ".join(", ".join(each) for each in theirs)
        raise ConfigError(f"{names[0]} and {names[1]} have no benchmark in common: {lists}")
    found = [compare(a.evaluation(n, theirs[0][n]), b.evaluation(n, theirs[1][n])) for n in shared]
    console.print(Text.assemble(("A  ", "bold"), names[0], ("\nB  ", "bold"), names[1]))
    _show_table(console, found)
    for comparison in found:
        _show_flips(console, comparison)
    changed = [
        f"{name}: {was!r} in A, {now!r} in B"
        for name, was, now in differences(a.settings(), b.settings())
        if not name.startswith("model.")
    ]
    if changed:
        console.print(Text("Settings that differ:", style="yellow"))
        for line in changed:
            console.print(Text(f"  {line}", style="yellow"))
    if out is not None:
        try:
            legend = f"A: {names[0]}\n\nB: {names[1]}\n\n"
            out.write_text(legend + comparison_markdown(found), encoding="utf-8")
        except OSError as error:
            raise RunError(f"cannot write {out}: {error}") from error
        console.print(Text(f"wrote {out}"), soft_wrap=True)


def _show_table(console: Console, found: list[Comparison]) -> None:
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
