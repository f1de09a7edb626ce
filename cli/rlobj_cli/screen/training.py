"""What `rlobj train` and `rlobj resume` show of a run, beside its progress."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from rlobj.base.launched import first_process
from rlobj.reporting.terminal import Screen, importing
from rlobj.runs.metrics import read_metrics
from rlobj.training.progress import RunScreen
from rlobj.training.resolving import ResolvedRun
from rlobj_cli.screen.console import calm_libraries

if TYPE_CHECKING:
    from rlobj.training import TrainingResult


def screen_of(place: str | None) -> RunScreen:
    """The screen of a process that trains.

    Args:
        place: where the process that has started this one shows the run: stdout, stderr or none;
            None = no other process has started it.
    """
    kind = ProgramScreen if place is None else RankScreen
    return kind(Screen(stderr=place == "stderr", quiet=place == "none" or not first_process()))


class DryRunScreen(RunScreen):
    """Shows what a run would be."""

    def opened(self, run: ResolvedRun) -> None:
        """Print the settings of the run, its objective and its memory."""
        with importing("transformers"):
            from rlobj_cli.screen.runs import show_dry_run
        self._shown.close()
        show_dry_run(self.console, run)


class ProgramScreen(RunScreen):
    """Shows a run with a header, the warnings below it, and the results of the program.

    Of a run in several processes, the first one shows the progress, and this one the rest.
    """

    def __init__(self, console: Console) -> None:
        calm_libraries(console)
        super().__init__(console)
        for handler in logging.getLogger("rlobj").handlers:  # warnings appear below the header
            handler.addFilter(lambda _: self.begin() or True)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Leave the terminal. If a finding has stopped the run, print the numbers so far."""
        super().__exit__(kind, error, trace)
        run, finding = self.run, getattr(error, "finding", None)
        if run is not None and finding in run.config.training.stop_on and not self.console.quiet:
            from rlobj_cli.screen.runs import show_history

            show_history(self.console, run.config, run.path, read_metrics(run.path))

    def header(self, run: ResolvedRun) -> None:
        """Print which run begins, or goes on, with the settings that the user gave."""
        from rlobj_cli.screen.runs import show_header

        show_header(self.console, run)

    def results(self, run: ResolvedRun, result: TrainingResult) -> None:
        """Print the results of a run whose steps are done."""
        from rlobj_cli.screen.runs import show_results, train_on

        if run.resumed and run.done == result.steps:
            advice = f"All steps are done. To train on:\n  {train_on(run.path, run.config)}"
            self.console.print(Text(advice), soft_wrap=True)
        else:
            show_results(self.console, run.config, result)


class RankScreen(ProgramScreen):
    """Shows the steps of a run whose header and results are shown by the process that began it."""

    def header(self, run: ResolvedRun) -> None:
        """Print nothing."""

    def ended(self, result: TrainingResult) -> None:
        """Leave the terminal."""
        self._shown.close()
