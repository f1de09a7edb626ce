"""`rlobj diagnose`: what is wrong with runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from rlobj.reporting.terminal import Screen, importing, reading, say
from rlobj_cli.screen.console import FAILED
from rlobj_cli.screen.options import Json, Runs

if TYPE_CHECKING:
    from rlobj.insight.diagnosis import RunDiagnosis


def diagnose(
    runs: Runs,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with exit code 1 if anything is found.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what is wrong with a run: collapse, spikes, drift, settings and rules without effect.

    Each finding has its evidence, the step since which it holds, and what would have touched it.
    Training makes the same checks after each step.

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
            show_run(console, run)
    if fail and diagnosis.findings:
        raise typer.Exit(FAILED)


def show_run(console: Console, diagnosis: RunDiagnosis) -> None:
    """Print what was found in a run, or what was checked if nothing was found."""
    from rlobj.base.errors import counted

    count = len(diagnosis.findings)
    title = Text.assemble(
        ("rlobj diagnose", "bold"),
        f"  {diagnosis.run}, {diagnosis.steps} steps: ",
        (counted(count, "finding"), "bold yellow") if count else ("no findings", "bold green"),
    )
    say(console, title)
    for finding in diagnosis.findings:
        style = "bold red" if finding.holds else "bold yellow"
        console.print()
        console.print(Text.assemble((finding.name, style), f"  {finding.when}"))
        lines = (finding.evidence, ""), (f"→ {finding.cure}", "cyan"), (finding.page, "dim")
        for line, look in lines:
            console.print(Padding(Text(line, look), (0, 0, 0, 2)))
    if count:
        console.print()
    for line in diagnosis.coverage:
        console.print(Text(line, "dim"))
    for note in diagnosis.notes:
        console.print(Text(f"note: {note}", "yellow"))
    console.print()
