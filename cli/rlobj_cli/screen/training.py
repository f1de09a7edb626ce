"""What `rlobj train` and `rlobj resume` show of a run, beside its progress."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError, RunError
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


@contextmanager
def explained(screen: RunScreen) -> Iterator[None]:
    """Inside, a finding that stops the run shows the numbers so far.

    Of new processes, the one that failed has shown its error, and its exit code is that of the
    program.
    """
    try:
        yield
    except (ConfigError, RunError) as error:
        if isinstance(error.__cause__, CalledProcessError):
            raise typer.Exit(error.__cause__.returncode) from None
        run, finding = screen.run, getattr(error, "finding", None)
        if run is not None and finding in run.config.training.stop_on and not screen.console.quiet:
            from rlobj_cli.screen.runs import show_history

            show_history(screen.console, run.config, run.path, read_metrics(run.path))
        raise
