"""The progress and the results of an evaluation on screen."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from rlobj.base.paths import nearby
from rlobj.evaluation import EvaluationCallback, EvaluationResult
from rlobj_cli.screen.console import Stages, facts_grid, reading, show_markdown, working

EVERY = 30.0
"""Seconds between two lines without a terminal."""


class EvaluationScreen(Stages, EvaluationCallback):
    """Shows the events of an evaluation.

    Args:
        console: the screen.
        command: the command's name, for the header; None = no header.
        doing: text in front of a benchmark's name while it is graded.
    """

    def __init__(self, console: Console, command: str | None = None, doing: str = "") -> None:
        super().__init__(console)
        self._command, self._doing = command, doing
        self._benchmark, self._drawn = "", 0
        self._printed = time.monotonic()

    def _follow(self, benchmark: str) -> None:
        """Show a bar for a benchmark; it appears with its first update."""
        if self._benchmark != benchmark:
            self._benchmark, self._drawn = benchmark, 0
            self._move = self.stage(reading(self._doing + benchmark, self.console))

    def _line(self, text: str) -> None:
        """Without a terminal, print a line now and then."""
        if not self.console.is_interactive and time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            self.console.print(Text(f"  {self._doing}{self._benchmark}: {text}"))

    def started(self, name: str) -> None:
        """Print the header, and show a spinner."""
        if self._command:
            self.console.print(
                Text.assemble((self._command, "bold"), "  ", (name, "bold cyan")), soft_wrap=True
            )
        self.stage(working(self.console, f"loading {name}"))

    def ready(self, facts: Mapping[str, str]) -> None:
        """Print the facts."""
        self._shown.close()
        self.console.print(facts_grid(facts))

    def noted(self, text: str, *, warning: bool = False) -> None:
        """Print the text."""
        self.console.print(Text(f"  {text}", style="yellow" if warning else "dim"))

    def sampled(self, benchmark: str, responses: int) -> None:
        """Count the responses; they count as done when they are graded."""
        self._follow(benchmark)
        self._drawn += responses
        self._line(f"{self._drawn:,} responses sampled")

    def graded(self, benchmark: str, done: int, total: int, accuracy: float) -> None:
        """Move the bar."""
        note = "" if math.isnan(accuracy) or self._doing else f"{accuracy:.1%} right"
        self._follow(benchmark)
        self._move(done, total, note)
        self._line(f"{done:,}/{total:,}  {note}")

    def interrupted(self, stored: int, total: int) -> None:
        """Print how much is stored."""
        self._shown.close()
        kept = f"{stored:,} of {total:,} responses are stored"
        self.console.print(Text(f"\n{kept}; the same command continues from there"))

    def finished(self, result: EvaluationResult) -> None:
        """Print what another grading changed, what is missing, the table, and the files."""
        self._shown.close()
        if result.regrading is not None:
            show_markdown(self.console, result.regrading.to_markdown())
            where = f"wrote {nearby(result.regrading.path)}"
            self.console.print(Text(where), soft_wrap=True)
        if result.unfinished:
            self.console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
        show_markdown(self.console, result.to_markdown())
        where = result.path and nearby(result.path)
        written = f"wrote results.json, results.md and report.html to {where}"
        self.console.print(Text(written), soft_wrap=True)
