"""The progress of an evaluation on screen."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from rlobj.evaluation import EvaluationCallback, EvaluationResult
from rlobj_cli.evaluate.tables import show_changes
from rlobj_cli.screen.console import facts_grid, preparing_policy, show_markdown, working


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
        """Print the header, and show a spinner."""
        if self._command:
            self._console.print(
                Text.assemble((self._command, "bold"), "  ", (name, "bold cyan")), soft_wrap=True
            )
        self._shown.enter_context(working(self._console, f"loading {name}"))

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """Show the supervised steps that make the embedded policy."""
        if done == 1:
            self._clear()
            self._prepare = self._shown.enter_context(preparing_policy(self._console))
        self._prepare(done, total, loss)

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

    def finished(self, result: EvaluationResult) -> None:
        """Print the grades that changed, if it was graded again, the table, and the files."""
        self._clear()
        if result.changes is not None:
            show_changes(self._console, result, result.changes)
        show_markdown(self._console, result.to_markdown())
        if result.unfinished:
            self._console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
        written = f"wrote results.json, results.md and report.html to {result.path}"
        self._console.print(Text(written), soft_wrap=True)


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
        self._print(f"{self._drawn:,} responses sampled")

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
