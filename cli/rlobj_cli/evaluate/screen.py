"""An evaluation on screen: progress, notes, and the table of results."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rlobj.evaluation import BenchmarkSummary, EvaluationCallback, EvaluationResult, GradeChange
from rlobj.evaluation.report.entries import estimated, percent, percent_range
from rlobj_cli.screen.console import facts_grid, number, preparing_policy, working

__all__ = ["Bar", "EvaluationScreen", "show_files", "show_result"]

MOST_ACROSS = 3
"""Benchmarks that stand side by side on 80 columns."""
MOST_CHANGES = 20
"""Changed grades that are listed."""


class EvaluationScreen(EvaluationCallback):
    """Shows the events of an evaluation.

    Args:
        console: the screen.
        command: the command's name, for the header; None = no header.
        doing: text in front of a benchmark's name while it is graded.
    """

    def __init__(self, console: Console, command: str | None = None, doing: str = "") -> None:
        self._console, self._command, self._doing = console, command, doing
        self._shown = contextlib.ExitStack()
        self._bar: Bar | None = None

    def __enter__(self) -> EvaluationScreen:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        """Remove the bar or spinner that is shown."""
        self._shown.close()
        self._bar = None

    def _progress(self, name: str) -> Bar:
        if self._bar is None or self._bar.name != name:
            self._clear()
            self._bar = self._shown.enter_context(Bar(self._console, name))
        return self._bar

    def started(self, name: str) -> None:
        """Print the header."""
        if self._command:
            self._console.print(
                Text.assemble((self._command, "bold"), "  ", (name, "bold cyan")), soft_wrap=True
            )

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Show the supervised steps that make the embedded policy."""
        if done == 1:
            self._clear()
            self._prepare = self._shown.enter_context(preparing_policy(self._console))
        self._prepare(done, total, loss)

    def loading(self, name: str) -> None:
        """Show a spinner."""
        self._clear()
        self._shown.enter_context(working(self._console, f"loading {name}"))

    def ready(self, facts: Mapping[str, str]) -> None:
        """Print the facts."""
        self._clear()
        self._console.print(facts_grid(facts))

    def noted(self, text: str, *, warning: bool = False) -> None:
        """Print the text."""
        self._console.print(Text(f"  {text}", style="yellow" if warning else "dim"))

    def sampled(self, benchmark: str, responses: int) -> None:
        """Count the responses; they count as done when they are graded."""
        self._progress(self._doing + benchmark).drew(responses)

    def graded(self, benchmark: str, done: int, total: int, accuracy: float) -> None:
        """Move the bar."""
        note = "" if math.isnan(accuracy) or self._doing else f"{accuracy:.1%} right"
        self._progress(self._doing + benchmark).move(done, total, note)

    def interrupted(self, stored: int, total: int) -> None:
        """Print how much is stored."""
        self._clear()
        kept = f"{stored:,} of {total:,} responses are stored"
        self._console.print(Text(f"\n{kept}; the same command continues from there"))

    def summarising(self) -> None:
        """Show a spinner."""
        self._clear()
        self._shown.enter_context(working(self._console, "summarising"))

    def summarised(self, result: EvaluationResult) -> None:
        """Print the grades that changed, if it was graded again, and the table."""
        self._clear()
        if result.changes is not None:
            _show_changes(self._console, result, result.changes)
        show_result(self._console, result)


class Bar:
    """A bar that appears with its first move; without a terminal, a line now and then."""

    EVERY = 30.0
    """Seconds between two lines without a terminal."""

    def __init__(self, console: Console, name: str) -> None:
        self._console, self.name = console, name
        self._drawn = 0
        self._printed = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_interactive,
        )

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def drew(self, more: int) -> None:
        """So many more responses are sampled."""
        self._drawn += more
        self._print(f"{self._drawn:,} responses drawn")

    def move(self, done: int, total: int, note: str = "") -> None:
        """So many are done."""
        if not self._bar.task_ids:
            self._bar.add_task(self.name, total=total, note=note)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, note=note)
        self._print(f"{done:,}/{total:,}  {note}")

    def _print(self, text: str) -> None:
        if self._console.is_interactive or time.monotonic() - self._printed < self.EVERY:
            return
        self._printed = time.monotonic()
        self._console.print(Text(f"  {self.name}: {text}"))


def show_files(console: Console, result: EvaluationResult) -> None:
    """Print where the files are."""
    written = f"wrote results.json, results.md and report.html to {result.path}"
    console.print(Text(written), soft_wrap=True)


def _show_changes(
    console: Console, result: EvaluationResult, changes: Sequence[GradeChange]
) -> None:
    graded = sum(each.summary.responses for each in result.benchmarks.values())
    console.print(Text(f"{graded:,} responses graded again, {len(changes):,} grades changed"))
    if not changes:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("benchmark", "problem", "sample", "answer", "was", "is", "reason"):
        table.add_column(title, overflow="fold")
    words = {True: "right", False: "wrong", None: "undecided"}
    for each in changes[:MOST_CHANGES]:
        benchmark, problem, sample = each.key
        texts = (benchmark, problem, str(sample), (each.after.answer or "–")[:60])
        verdicts = (words[each.before.correct], words[each.after.correct], each.after.reason[:60])
        table.add_row(*map(Text, (*texts, *verdicts)))
    console.print(table)
    if len(changes) > MOST_CHANGES:
        console.print(Text(f"and {len(changes) - MOST_CHANGES:,} more", style="dim"))


def show_result(console: Console, result: EvaluationResult) -> None:
    """Print the numbers of each benchmark, their average, and notes."""
    summaries = [each.summary for each in result.benchmarks.values()]
    console.print(_across(summaries) if len(summaries) <= MOST_ACROSS else _down(summaries))
    if result.unfinished:
        console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
    if len(summaries) > 1:
        text = (
            f"average of {len(summaries)} benchmarks: {percent(result.accuracy)} %, "
            f"95% interval {percent_range(*result.interval[:2])}"
        )
        console.print(Text(text, style="bold"))
    for note in _notes(result):
        console.print(Text(note, style="dim"))


def _across(summaries: Sequence[BenchmarkSummary]) -> Table:
    """Measures down, benchmarks across."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for summary in summaries:
        table.add_column(Text(summary.benchmark), justify="right", overflow="fold")

    def row(name: str, value: Callable[[BenchmarkSummary], str], style: str | None = None) -> None:
        table.add_row(name, *map(value, summaries), style=style)

    row("problems", lambda s: f"{s.problems:,}")
    row("responses per problem, n", lambda s: f"{s.samples_per_problem:,}")
    row("avg@n, %", lambda s: percent(s.accuracy), "bold")
    row("  95% interval", lambda s: percent_range(*s.interval[:2]))
    row("  ± standard error, problems", lambda s: _error(s.standard_errors.problems), "dim")
    row("  ± standard error, sampling", lambda s: _error(s.standard_errors.sampling), "dim")
    for k in sorted({k for summary in summaries for k in summary.pass_at if k > 1}):
        row(f"pass@{k}", lambda s, k=k: estimated(s.pass_at.get(k), s.problems))
    if any(summary.maj_at for summary in summaries):
        row("maj@n", lambda s: estimated(s.maj_at.get(s.samples_per_problem), s.problems))
    table.add_section()
    row("mean length, tokens", lambda s: number(s.lengths.mean, 1))
    row("truncated, %", lambda s: percent(s.truncated))
    row("without an answer, %", lambda s: percent(s.no_answer))
    row("undecided responses", lambda s: f"{s.undecided:,}")
    return table


def _down(summaries: Sequence[BenchmarkSummary]) -> Table:
    """Benchmarks down, the first measures across: for many benchmarks."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for title in ("n", "avg@n", "95% interval", "± SE", "pass@n", "maj@n", "cut", "undecided"):
        table.add_column(title, justify="right")
    for s in summaries:
        n = s.samples_per_problem
        table.add_row(
            Text(s.benchmark),
            f"{s.problems:,}×{n}",
            Text(percent(s.accuracy), style="bold"),
            percent_range(*s.interval[:2]).replace(" to ", "–"),
            _error(s.standard_errors.problems),
            estimated(s.pass_at.get(n), s.problems),
            estimated(s.maj_at.get(n), s.problems),
            percent(s.truncated),
            f"{s.undecided:,}",
        )
    return table


def _error(value: float) -> str:
    """A standard error; 0 says that no problem differs from another, so it is not known."""
    return percent(value or math.nan)


def _notes(result: EvaluationResult) -> list[str]:
    notes = [
        "shares in percent; interval, and error over problems: this model on problems like these; "
        "sampling: on these very problems, asked again"
    ]
    for name, each in result.benchmarks.items():
        own: Mapping[str, Any] = each.settings
        if "temperature" in own:
            notes.append(
                f"{name}: temperature {own['temperature']}, top-p {own['top_p']}, at most "
                f"{own['max_tokens']} tokens, seed {own['seed']}"
            )
        notes += [f"{name}: {note}" for note in own.get("notes", ())]
        for reason, count in each.summary.undecided_reasons.items():
            notes.append(f"{name}: {count} undecided, {reason}")
    return notes
