"""The progress and the results of an evaluation on screen."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from rlobj.evaluation import EvaluationResult
from rlobj.evaluation.progress import EvaluationProgress
from rlobj.reporting.terminal import show_markdown


class EvaluationScreen(EvaluationProgress):
    """Shows the events of an evaluation, and its results.

    Args:
        console: the screen.
        command: the command's name, for the header; None = no header.
        doing: text in front of a benchmark's name while it is graded.
    """

    def __init__(self, console: Console, command: str | None = None, doing: str = "") -> None:
        super().__init__(console, doing)
        self._command = command

    def started(self, name: str) -> None:
        """Print the header, and show a spinner."""
        if self._command:
            header = Text.assemble((self._command, "bold"), "  ", (name, "bold cyan"))
            self.console.print(header, soft_wrap=True)
        super().started(name)

    def finished(self, result: EvaluationResult) -> None:
        """Print what is missing, and the table."""
        self._shown.close()
        if result.unfinished:
            self.console.print(Text(f"Not finished: {result.unfinished}", style="yellow"))
        show_markdown(self.console, result.to_markdown())
