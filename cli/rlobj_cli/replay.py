"""`rlobj replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, importing, number, reading, say, table
from rlobj_cli.screen.errors import typed
from rlobj_cli.screen.options import Json, Step, Trust

if TYPE_CHECKING:
    from rlobj.insight import Replay


TOKENS = {
    "touched": ("tokens", ""),
    "share": ("share", ""),
    "precision": ("precision", "share of spurious tokens among those of them that were judged"),
    "recall": ("recall", "their share of all spurious tokens"),
    "carried": ("gradient", "their share of the gradient if the objective dropped no token"),
}
"""The tokens that objectives and rules touch: column -> head, and what it means."""
GRADIENT = {
    "effect": ("effect", ""),
    "clipped": ("clipped", "tokens with a weight, but outside the surrogate's bounds: no gradient"),
    "gradient": ("size", "sum of the norms of the tokens' gradients; recorded objective = 1"),
    "gradient_up": ("raised", "share of it on tokens that become more likely"),
    "gradient_spurious": ("spurious", "share of it on spurious tokens"),
}
"""The gradients of objectives, in the same way."""
EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")


def replay(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Folder of a run with full tables, or Parquet files of such tables."
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
        list[str] | None,
        typer.Option(
            metavar="NAME=FROM..TO[:COUNT]",
            help="Values of a number that has a name in capitals in a rule; 20 by default.",
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
    """
    console = Screen()
    with importing("torch"):
        from rlobj.insight import replay as replay_run
    objectives = [name.strip() for name in (preset or "").split(",") if name.strip()]
    objectives += rule or ()
    if len(sweep or ()) > 1:
        raise ConfigError("--sweep was given twice; one number is swept at a time")
    swept = sweep[0] if sweep else None
    with reading("replaying") as move:
        replayed = replay_run(run, objectives, sweep=swept, step=step, trust=trust, progress=move)
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
    if len(rows) > 1 or not sweeps:
        show_rows(console, "touched by", TOKENS, [(visible(row["name"], 60), row) for row in rows])
    planned = [row for row in rows if row["gradient"] is not None]
    for row in planned:
        counts = {effect: row[effect] for effect in EFFECTS if row[effect]}
        row["effect"] = ", ".join(f"{name} {n:,.0f}" for name, n in counts.items()) or "none"
    show_rows(
        console, "gradient of", GRADIENT, [(visible(row["name"], 60), row) for row in planned]
    )
    for rule in dict.fromkeys(row["name"] for row in sweeps):
        console.print(Text(f"\n{visible(rule, 300)}"))
        chosen = [(f"{row['value']:g}", row) for row in sweeps if row["name"] == rule]
        show_rows(console, replayed.swept, TOKENS, chosen)


def show_rows(
    console: Console,
    title: str,
    heads: Mapping[str, tuple[str, str]],
    rows: Sequence[tuple[str, Mapping[str, Any]]],
) -> None:
    """Print rows, each after its name, and what their columns mean; unknown columns are left out.

    Args:
        console: the screen.
        title: of the names.
        heads: for each column its head and its meaning.
        rows: the name of each row, and its values.
    """
    from rlobj.insight.numbers import percent

    def cell(row: Mapping[str, Any], key: str) -> str:
        if key in ("touched", "clipped"):
            return f"{row[key]:,.0f}"
        if key == "effect":
            return row[key]
        if key == "gradient" or row[key] is None:
            return number(row[key])
        return percent(row[key])

    if not rows:
        return
    columns = [key for key in heads if any(row[key] is not None for _, row in rows)]
    grid = table(title, right=[heads[key][0] for key in columns])
    for column, key in zip(grid.columns[1:], columns, strict=True):
        column.no_wrap = key != "effect"
    for name, row in rows:
        grid.add_row(Text(name), *(Text(cell(row, key)) for key in columns))
    console.print(grid)
    width = max(len(heads[key][0]) for key in columns)
    for head, meaning in (heads[key] for key in columns):
        if meaning:
            console.print(Text(f"{head:<{width}}  {meaning}", "dim"))
