"""`rlobj replay`: what other objectives and rules do to the tokens that a run recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.reporting import visible
from rlobj_cli.screen.console import loading, number, reading, say, table
from rlobj_cli.screen.options import option

if TYPE_CHECKING:
    from rlobj.insight import Replay

SHARES = {"share": "share", "precision": "precision", "recall": "recall", "carried": "carry"}
PARTS = {"gradient_up": "up", "gradient_top": "top 1%", "gradient_spurious": "spurious"}
EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
MOST_PAIRS = 15


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
    with reading("replaying") as progress:
        found = replay_run(
            run / "records" if records else run,
            [*names, *(rule or ())],
            sweep=sweep,
            step=step,
            trust=trust,
            progress=progress,
        )
    if figure is not None:
        save_figure(found.figure(), figure)
    if json:
        typer.echo(found.to_json())
    else:
        show(console, found)


def show(console: Console, found: Replay) -> None:
    """Print the objectives and rules, what they have in common, and the sweep."""
    say(console, Text.assemble(("rlobj replay", "bold"), "  ", found.title))
    if found.proof:
        say(console, Text(found.proof))
    rows, pairs = found.objectives.to_pylist(), found.pairs.to_pylist()
    console.print(_chosen("touched or selected", ((row["name"], row) for row in rows), found.exact))
    if found.exact:
        console.print(_gradients([row for row in rows if row["kept"] is not None]))
    if len(pairs) > MOST_PAIRS:
        pairs = [row for row in pairs if row["first"] == rows[0]["name"]]
        console.print(Text("pairs without the recorded objective: --json", "dim"))
    if pairs:
        console.print(_pairs(pairs))
    values = found.sweeps.to_pylist()
    for rule in dict.fromkeys(row["rule"] for row in values):
        console.print(Text(visible(rule, 300)))
        chosen = ((f"{row['value']:g}", row) for row in values if row["rule"] == rule)
        console.print(_chosen(found.swept, chosen, found.exact))
    for remark in found.remarks:
        say(console, Text(remark, "yellow"))
    if not found.exact:
        say(console, Text("≈ estimated from a sample; ± is one standard error"))


def _chosen(title: str, rows: Iterable[tuple[str, Mapping[str, Any]]], exact: bool) -> Table:
    """Touched or selected tokens: how many, whether they are spurious, what they carry."""
    from rlobj.insight.replaying.result import count, share

    shown = table(title, right=("tokens", *SHARES.values()))
    for name, row in rows:
        shown.add_row(_name(name), count(row, exact), *(share(row, each) for each in SHARES))
    return shown


def _gradients(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What objectives do to tokens, and who carries their gradient."""
    from rlobj.insight.replaying.result import share

    effects = [name for name in EFFECTS if any(row[name] for row in rows)]
    shown = table("gradient", right=("kept", *effects, "norms", *PARTS.values()))
    for row in rows:
        counts = (f"{row[name]:,.0f}" for name in ("kept", *effects))
        parts = (share(row, part) for part in PARTS)
        shown.add_row(_name(row["name"]), *counts, number(row["gradient"]), *parts)
    return shown


def _pairs(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What two objectives have in common."""
    from rlobj.insight.replaying.result import share

    shown = table("in common", "", right=("overlap", "weights", "gradients"))
    for row in rows:
        numbers = (number(row[name]) for name in ("weights", "gradients"))
        shown.add_row(
            *(_name(row[x]) for x in ("first", "second")), share(row, "overlap"), *numbers
        )
    return shown


def _name(name: str) -> Text:
    return Text(visible(name, 60))
