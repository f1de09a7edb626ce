"""The progress of an evaluation on screen."""

import contextlib
import math
import time
from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.text import Text

from rlobj.base.launched import first_process
from rlobj.evaluation.callbacks import EvaluationCallback
from rlobj.evaluation.result import EvaluationResult
from rlobj.reporting import terminal

EVERY = 30.0
"""Seconds between two lines without a terminal."""


class EvaluationProgress(terminal.Stages, EvaluationCallback):
    """Shows the events of an evaluation. A callback and a context manager.

    Args:
        console: the screen.
        doing: text in front of a benchmark's name while it is graded.
        command: the name of a command, for a header; "" = no header.
        results: show the results in the end.
    """

    def __init__(
        self,
        console: Console,
        doing: str = "",
        *,
        command: str | None = None,
        results: bool = False,
    ) -> None:
        super().__init__(console)
        self._doing, self._command, self._results = doing, command, results
        self._benchmark, self._drawn = "", 0
        self._printed = time.monotonic()

    def _follow(self, benchmark: str) -> None:
        """Show a bar for a benchmark; it appears with its first update."""
        if self._benchmark != benchmark:
            self._benchmark, self._drawn = benchmark, 0
            self._move = self.stage(terminal.reading(self._doing + benchmark, self.console))

    def _line(self, text: str) -> None:
        """Without a terminal, print a line now and then."""
        if not self.console.is_interactive and time.monotonic() - self._printed > EVERY:
            self._printed = time.monotonic()
            self.console.print(Text(f"  {self._doing}{self._benchmark}: {text}"))

    def started(self, name: str) -> None:
        """Print the header, and show what is loaded."""
        if self._command:
            header = Text.assemble((self._command, "bold"), "  ", (name, "bold cyan"))
            self.console.print(header, soft_wrap=True)
        self.opening(f"loading {name}")

    def ready(self, facts: Mapping[str, str]) -> None:
        """Print the facts, and show what goes on until the first responses are there."""
        self._shown.close()
        self.console.print(terminal.facts_grid(facts))
        self.stage(terminal.working(self.console, self._doing.strip() or "sampling"))

    def noted(self, text: str) -> None:
        """Print the text."""
        terminal.say(self.console, Text(f"  {text}", style="dim"))

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

    def finished(self, result: EvaluationResult) -> None:
        """Print what is missing, and the table."""
        self._shown.close()
        if self._results:
            if result.unfinished:
                self.console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
            terminal.show_markdown(self.console, result.to_markdown())


@contextlib.contextmanager
def followed(
    callback: EvaluationCallback | None, progress: bool, doing: str = ""
) -> Iterator[EvaluationCallback]:
    """The callback; without one, if `progress` is asked for, the progress on stderr."""
    if callback is None and progress and first_process():  # also where each process works alone
        with EvaluationProgress(terminal.bystander(), doing) as shown:
            yield shown
    else:
        yield callback or EvaluationCallback()
