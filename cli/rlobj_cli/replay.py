"""`rlobj replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from rlobj.reporting.terminal import Screen, importing, reading, say, table
from rlobj_cli.screen.console import typed
from rlobj_cli.screen.options import Json, Step, Trust

if TYPE_CHECKING:
    from rlobj.insight import Replay


def replay(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run with full tables, such a Parquet file, or traces."
        ),
    ],
    preset: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Objectives of these presets, names or files."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE", help="The tokens that a rule selects. Can be repeated."),
    ] = None,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=FROM..TO[:COUNT]",
            help="Values of a number that has a name in capitals in a rule; 20 by default.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Also the run's objective with another setting, such as "
            "objective.advantage.lam=0.9. Repeatable: all changes make one objective.",
        ),
    ] = None,
    step: Step = None,
    json: Json = False,
    trust: Trust = False,
) -> None:
    """Say what other objectives and rules would do to the tokens of a run.

    Full tables have all tokens of some steps. On them objectives are planned
    again, exactly, on a CPU and without a model. Nothing is trained or sampled.
    Without --preset and --rule, the recorded objective is checked: it gives the
    recorded weights again.

    [bold]Examples[/bold]

    \b  rlobj replay runs/stapo-20260101-120000 --preset grpo,stare,20-entropy
      rlobj replay RUN --rule "(advantage > 0) & (prob < 0.01)"
      rlobj replay RUN --rule "prob < TAU" --sweep TAU=1e-4..1e-2
      rlobj replay RUN --set objective.surrogate.high=0.28
    """
    console = Screen()
    with importing("torch"):
        from rlobj.insight import replay as replay_run
        from rlobj.settings.layers import parse_setting
    objectives = [name.strip() for name in (preset or "").split(",") if name.strip()]
    objectives += rule or ()
    layers = [("--set", parse_setting(text)) for text in settings or []]
    with reading("replaying") as move:
        replayed = replay_run(
            run, objectives, sweep=sweep, settings=layers, step=step, trust=trust, progress=move
        )
    if json:
        typer.echo(replayed.to_json())
    else:
        show(console, replayed)


def show(console: Console, replayed: Replay) -> None:
    """Print the objectives and rules, and the sweep."""
    from rlobj.insight.replaying.texts import text_tables

    say(console, Text.assemble(("rlobj replay", "bold"), f"  {replayed.title}"))
    for remark in replayed.remarks:
        say(console, Text(typed(remark, {"sweep": "--sweep"}), "yellow"))
    for title, head, rows in text_tables(replayed):
        if title:
            console.print(Text(f"\n{title}"))
        grid = table(head[0], right=head[1:])
        for row in rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
