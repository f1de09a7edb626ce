"""`rlobj diagnose`: what is wrong with runs."""

from typing import Annotated

import typer
from rich.text import Text

from rlobj.reporting.terminal import Screen, importing, reading, say
from rlobj_cli.screen.console import FAILED
from rlobj_cli.screen.options import Json, Runs


def diagnose(
    runs: Runs,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with exit code 1 if anything is found.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what is wrong with a run: collapse, spikes, drift, settings and rules without effect.

    Each finding has its evidence, the step since which it holds, and what would have touched it.
    Training makes the same checks after each step. RUN may also be a log of TRL, verl, W&B or
    TensorBoard.

    [bold]Examples[/bold]

    \b  rlobj diagnose runs/stapo-20260101-120000
      rlobj diagnose runs/* --fail
      rlobj train --preset stapo --stop-on collapse
    """
    console = Screen()
    with importing("torch"):
        from rlobj.insight import diagnose as diagnose_runs
    with reading("checking the steps, bytes") as progress:
        diagnosis = diagnose_runs(runs, progress=progress)
    if json:
        typer.echo(diagnosis.to_json())
    else:
        for run in diagnosis.runs:
            text = Text(f"rlobj diagnose  {run}\n")
            text.highlight_words([finding.name for finding in run.findings], "bold yellow")
            text.highlight_regex(r"(?m)^  → .*|^rlobj diagnose", "cyan")
            say(console, text)
    if fail and diagnosis.findings:
        raise typer.Exit(FAILED)
