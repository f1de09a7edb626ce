"""The results of evaluations as tables on screen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.evaluation import EvaluationResult, GradeChange
from rlobj.evaluation.report.tables import (
    UNKNOWN,
    measures,
    percent,
    percent_range,
)
from rlobj_cli.screen.console import table

MOST_ACROSS = 3
"""Benchmarks that fit side by side on 80 columns."""
MOST_CHANGES = 20
"""Changed grades that are listed."""
ELSEWHERE = ("pass@1", "pass@n", "maj@n", "tokens")
"""Measures that another row shows."""


def show_result(console: Console, result: EvaluationResult) -> None:
    """Print the numbers of each benchmark, their average, and notes."""
    texts = {name: measures(each.summary) for name, each in result.benchmarks.items()}
    longest_first = sorted(texts.values(), key=len, reverse=True)
    rows = dict.fromkeys(row for own in longest_first for row in own if row not in ELSEWHERE)
    names = list(texts)
    for start in range(0, len(names), MOST_ACROSS):
        part = {name: texts[name] for name in names[start : start + MOST_ACROSS]}
        console.print(_measures_down(part, rows))
    if result.unfinished:
        console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
    if len(texts) > 1:
        text = (
            f"average of {len(texts)} benchmarks: {percent(result.accuracy)} %, "
            f"95% interval {percent_range(*result.interval[:2])}"
        )
        console.print(Text(text, style="bold"))
    for note in _notes(result):
        console.print(Text(note, style="dim"))


def _measures_down(texts: Mapping[str, Mapping[str, str]], rows: Iterable[str]) -> Table:
    """Benchmarks across, their measures down."""
    found = table("", right=list(texts))
    for name in rows:
        style = "bold" if name == "avg@n" else "dim" if "±" in name else None
        values = [each.get(name, UNKNOWN) for each in texts.values()]
        if "±" in name:  # 0: no problem differs from another, so the error is not known
            values = [UNKNOWN if value == "0.0" else value for value in values]
        found.add_row(name, *values, style=style)
    return found


def _notes(result: EvaluationResult) -> list[str]:
    notes = [
        "shares in percent of n responses per problem; interval and ± problems, a standard error: "
        "for similar problems; ± sampling: for the same problems, sampled again"
    ]
    for name, each in result.benchmarks.items():
        own = each.settings
        if "temperature" in own:
            notes.append(
                f"{name}: temperature {own['temperature']}, top-p {own['top_p']}, at most "
                f"{own['max_tokens']} tokens, seed {own['seed']}"
            )
        notes += [f"{name}: {note}" for note in own.get("notes", ())]
        for reason, count in each.summary.undecided_reasons.items():
            notes.append(f"{name}: {count} undecided, {reason}")
    return notes


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
