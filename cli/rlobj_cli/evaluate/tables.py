"""The grades that changed when an evaluation was graded again, on screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from rlobj.evaluation import EvaluationResult, GradeChange
from rlobj.evaluation.report.tables import UNKNOWN
from rlobj_cli.screen.console import table

MOST_CHANGES = 20
"""Changed grades that are listed."""


def show_changes(
    console: Console, result: EvaluationResult, changes: Sequence[GradeChange]
) -> None:
    """Print which verdicts changed when an evaluation was graded again."""
    graded = sum(each.summary.responses for each in result.benchmarks.values())
    console.print(Text(f"{graded:,} responses graded again, {len(changes):,} grades changed"))
    found = table("benchmark", "problem", "sample", "answer", "was", "is", "reason")
    words = {True: "right", False: "wrong", None: "undecided"}
    for each in changes[:MOST_CHANGES]:
        benchmark, problem, sample = each.key
        texts = (benchmark, problem, str(sample), (each.after.answer or UNKNOWN)[:60])
        verdicts = (words[each.before.correct], words[each.after.correct], each.after.reason[:60])
        found.add_row(*map(Text, (*texts, *verdicts)))
    if changes:
        console.print(found)
    if len(changes) > MOST_CHANGES:
        console.print(Text(f"and {len(changes) - MOST_CHANGES:,} more", style="dim"))
