"""`rlobj replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rlobj.insight.numbers import percent
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, importing, number, reading, say, table
from rlobj_cli.screen.console import typed
from rlobj_cli.screen.options import Json, Step, Trust

if TYPE_CHECKING:
    from rlobj.insight import Replay


COUNT = "{:,.0f}".format
TOKENS = {
    "touched": ("tokens", COUNT),
    "share": ("share", percent),
    "precision": ("precision", percent),
    "recall": ("recall", percent),
    "carried": ("gradient", percent),
}
"""The tokens that objectives and rules touch: column -> head and format."""
GRADIENT = {
    "effect": ("effect", str),
    "clipped": ("clipped", COUNT),
    "gradient": ("size", number),
    "gradient_up": ("raised", percent),
    "gradient_spurious": ("spurious", percent),
    "value_explained_variance": ("V explains", number),
}
"""The gradients of objectives, in the same way."""
EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")


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
    say(console, Text.assemble(("rlobj replay", "bold"), f"  {replayed.title}"))
    for remark in replayed.remarks:
        say(console, Text(typed(remark, {"sweep": "--sweep"}), "yellow"))
    rows, sweeps = replayed.objectives.to_pylist(), replayed.sweeps.to_pylist()
    for row in rows:
        counts = {effect: row[effect] for effect in EFFECTS if row[effect]}
        row["effect"] = ", ".join(f"{name} {n:,.0f}" for name, n in counts.items()) or "none"
    if len(rows) > 1 or not sweeps:
        show_rows(console, "touched by", TOKENS, "name", rows)
    planned = [row for row in rows if row["gradient"] is not None]
    show_rows(console, "gradient of", GRADIENT, "name", planned)
    for rule in dict.fromkeys(row["name"] for row in sweeps):
        console.print(Text(f"\n{visible(rule, 300)}"))
        chosen = [row | {"value": f"{row['value']:g}"} for row in sweeps if row["name"] == rule]
        show_rows(console, replayed.swept, TOKENS, "value", chosen)


def show_rows(
    console: Console,
    title: str,
    heads: Mapping[str, tuple[str, Callable[[Any], str]]],
    name: str,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Print rows; columns of which nothing is known are left out.

    Args:
        console: the screen.
        title: of the names.
        heads: for each column its head and its format.
        name: the column with the names of the rows.
        rows: the values.
    """
    columns = {
        key: head for key, head in heads.items() if any(row[key] is not None for row in rows)
    }
    grid = table(title, right=[head for head, _ in columns.values()])
    for row in rows:
        cells = ["–" if row[key] is None else text(row[key]) for key, (_, text) in columns.items()]
        grid.add_row(*map(Text, (visible(row[name], 60), *cells)))
    if rows:
        console.print(grid)
