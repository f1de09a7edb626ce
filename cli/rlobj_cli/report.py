"""`rlobj report`: runs compared on one page, with their numbers in the terminal."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from rlobj.reporting.terminal import Screen, importing, say, table, working
from rlobj_cli.screen.console import require_folder, show_page
from rlobj_cli.screen.options import Runs


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: report.html in the run, or beside several."),
    ] = None,
) -> None:
    """Compare runs on one page: curves, numbers, findings, settings that differ, and times.

    The page needs no network. The terminal shows the numbers of each run and its seconds a step.
    RUN may also be a log of TRL, verl, W&B or TensorBoard.

    [bold]Examples[/bold]

    \b  rlobj report runs/stapo-20260101-120000
      rlobj report runs/* --out comparison.html
    """
    console = Screen()
    require_folder(out)
    with importing("torch"):
        from rlobj.insight.run_report.page import summary, times, write_report
        from rlobj.insight.run_report.runs import read_runs
    with working(console, "reading the runs"):
        read = read_runs(runs)
        path = write_report(read, out)
    for title, rows in (("run", summary(read)), ("seconds a step", times(read))):
        shown = table(title, right=[run.label for run in read])
        for name, cells in rows.items():
            shown.add_row(*map(Text, (name, *cells)))
        if shown.row_count:
            console.print(shown)
    for run in read:
        for note in run.notes:
            say(console, Text(f"{run.label}: {note}", style="yellow"))
    show_page(console, path)
