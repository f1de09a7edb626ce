"""`rlobj replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from rlobj.reporting import visible
from rlobj_cli.screen.console import loading, number, reading, say, table
from rlobj_cli.screen.options import option

if TYPE_CHECKING:
    from rlobj.insight import Replay

EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
NUMBERS = ("gradient", "weights", "gradients")
TOKENS = {"name": "touched by", "touched": "tokens", "share": "share"}
TOKENS |= {"precision": "precision", "recall": "recall", "carried": "carry"}
GRADIENT = {"name": "gradient", "kept": "kept", **{effect: effect for effect in EFFECTS}}
GRADIENT |= {"gradient": "norms", "gradient_up": "up"}
GRADIENT |= {"gradient_top": "top 1%", "gradient_spurious": "spurious"}
PAIRS = {"first": "in common", "second": "", "overlap": "overlap"}
PAIRS |= {"weights": "weights", "gradients": "gradients"}
MOST_PAIRS = 15
"""Beyond these, only pairs with the recorded objective are shown."""


def replay(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, or Parquet files of its schema."),
    ],
    preset: Annotated[
        str | None,
        option(None, "--preset A,B,C", "Objectives of these presets, names or files."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        option(None, "--rule RULE", "The tokens that a rule selects. Can be repeated."),
    ] = None,
    sweep: Annotated[
        str | None,
        option(
            None,
            "--sweep NAME=FROM..TO[:COUNT]",
            "Values of a number that has a name in capitals in a rule; 20 by default.",
        ),
    ] = None,
    step: Annotated[int | None, option(None, "--step N", "Only this step.", min=1)] = None,
    records: Annotated[
        bool,
        option(None, "--records", "Estimate from the record, which has samples of all steps."),
    ] = False,
    figure: Annotated[
        Path | None, option(None, "--figure FILE", "Draw the sweep as FILE.svg or FILE.png.")
    ] = None,
    json: Annotated[
        bool, option(None, "--json", "Print everything as JSON, for other programs.")
    ] = False,
    trust: Annotated[
        bool, option(None, "--trust", "Import the code that objectives name by its path.")
    ] = False,
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
      rlobj replay RUN --rule "prob < P" --sweep P=0.1..0.9:9 --figure p.svg
      rlobj replay RUN --records --rule "prob < 0.001"     estimates, all steps

    [bold]Columns[/bold]

    \b  precision, recall   shares of the judged and of the spurious tokens
      carry               share of the gradient if no token was left out
      norms               sum over tokens, relative to the recorded objective
      up, top 1%          its shares on tokens that become more likely, and
                          on 1% of the tokens
      overlap             tokens touched by both, of those touched by either
      weights, gradients  correlation, and cosine
    """
    console = Console()
    with loading(console):
        from rlobj.insight import replay as replay_run
        from rlobj.reporting.figures import save_figure
    names = [name.strip() for name in (preset or "").split(",") if name.strip()]
    given = [*names, *(rule or ())]
    run = run / "records" if records else run
    with reading("replaying") as progress:
        found = replay_run(run, given, sweep=sweep, step=step, trust=trust, progress=progress)
    if figure is not None:
        save_figure(found.figure(), figure)
    if json:
        typer.echo(found.to_json())
    else:
        show(console, found)


def show(console: Console, found: Replay) -> None:
    """Print the objectives and rules, what they have in common, and the sweep."""
    say(console, Text.assemble(("rlobj replay", "bold"), f"  {found.title}"))
    rows, pairs = found.objectives.to_pylist(), found.pairs.to_pylist()
    show_rows(console, found, TOKENS, rows)
    if found.exact:
        show_rows(console, found, GRADIENT, [row for row in rows if row["kept"] is not None])
    if len(pairs) > MOST_PAIRS:
        pairs = [row for row in pairs if row["first"] == rows[0]["name"]]
        console.print(Text("pairs without the recorded objective: --json", "dim"))
    show_rows(console, found, PAIRS, pairs)
    values = found.sweeps.to_pylist()
    for rule in dict.fromkeys(row["name"] for row in values):
        console.print(Text(visible(rule, 300)))
        titles = {"value": found.swept} | {key: TOKENS[key] for key in [*TOKENS][1:]}
        show_rows(console, found, titles, [row for row in values if row["name"] == rule])
    for remark in found.remarks:
        say(console, Text(remark, "yellow"))
    if not found.exact:
        say(console, Text("≈ estimated from a sample; ± is one standard error"))


def show_rows(
    console: Console, found: Replay, titles: Mapping[str, str], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Print rows with some of their columns; effects that no row has are left out."""
    from rlobj.insight.replaying.result import count, share

    def cell(row: Mapping[str, Any], key: str) -> str:
        value = row[key]
        if isinstance(value, str):
            return visible(value, 60)
        if key == "touched":
            return count(row, found.exact)
        if key in ("kept", *EFFECTS):
            return f"{value:,.0f}"
        if key == "value":
            return f"{value:g}"
        return number(value) if key in NUMBERS else share(row, key)

    shown = [key for key in titles if key not in EFFECTS or any(row[key] for row in rows)]
    words = [key for key in shown if key in ("name", "first", "second", "value")]
    numbers = [titles[key] for key in shown if key not in words]
    grid = table(*(titles[key] for key in words), right=numbers)
    for row in rows:
        grid.add_row(*(Text(cell(row, key)) for key in shown))
    if rows:
        console.print(grid)
