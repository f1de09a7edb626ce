"""`rlobj inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, importing, number, reading, table, working
from rlobj_cli.screen.console import plain_value, show_page
from rlobj_cli.screen.context import beginning, in_context, style_of
from rlobj_cli.screen.options import Json, Step

if TYPE_CHECKING:
    from rlobj.insight import Inspection


NUMBERS = {"prob": 4, "entropy": 3, "advantage": 2, "gradient_norm": 3, "factor": 3}
"""Columns of tokens on the screen, with their digits."""


def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")],
    step: Step = None,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Only tokens that the objective dropped.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="All recorded tokens that a rule selects, also those that the objective did not "
            "touch. The rule reads recorded columns, token by token.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tokens with this text.")
    ] = None,
    groups: Annotated[
        int, typer.Option(metavar="N", min=1, help="Token texts to show, the most frequent first.")
    ] = 10,
    examples: Annotated[
        int, typer.Option(metavar="N", min=0, help="Tokens of each to show in context.")
    ] = 2,
    json: Json = False,
    html: Annotated[
        bool,
        typer.Option("--html", help="Write a page with all tokens; RUN/inspect.html or --out."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where --html writes the page.")
    ] = None,
) -> None:
    """Show the tokens that the objective dropped, reweighted or penalised, and why.

    A record has all of these tokens, and a sample of the others.
    Beyond a size it has a sample of both. Counts from a sample are marked ≈.

    [bold]Examples[/bold]

    \b  rlobj inspect runs/stapo-20260101-120000
      rlobj inspect runs/stapo-20260101-120000 --dropped --step 40
      rlobj inspect RUN --where "(prob < 0.001) & (advantage > 0)"
      rlobj inspect RUN --where "(prob < 0.01) & (kept > 0)"    rare tokens that stayed
      rlobj inspect RUN --json > tokens.json
      rlobj inspect RUN --html                a page to explore all tokens

    [bold]Columns that --where reads[/bold]

    \b  prob logprob surprisal entropy old_prob ratio advantage reward position
      gradient_norm entropy_sensitivity sampler_gap weight factor
      step update response group token inclusion_probability
      kept: 1 or 0; spurious: the same, in tasks that judge tokens, such as scratchpad
    """
    console = Screen()
    if html:
        chosen = {"step": step, "dropped": dropped, "where": where, "text": text, "json": json}
        if unused := [f"--{name}" for name, value in chosen.items() if value]:
            raise ConfigError(f"--html takes no {unused[0]}: the page has filters of its own")
        return _write_page(console, run, out)
    if out is not None:
        raise ConfigError("--out names the file of a page: add --html")
    with importing("torch"):
        from rlobj.insight import inspect as inspect_run
    with working(console, "reading the record"):
        inspection = inspect_run(run, step, dropped, where, text=text, examples=examples)
    if json:
        typer.echo(inspection.to_json())
    else:
        show(console, inspection, groups)


def _write_page(console: Console, run: Path, out: Path | None) -> None:
    with importing("torch"):
        from rlobj.insight import write_inspection_page
    with reading("reading the tokens") as progress:
        path = write_inspection_page(run, out, progress=progress)
    show_page(console, path)


def show(console: Console, inspection: Inspection, groups: int) -> None:
    """Print the clauses that fired, then the largest groups with their examples in context."""
    console.print(Text.assemble(("rlobj inspect", "bold"), "  ", inspection.title), soft_wrap=True)
    console.print(Text(inspection.total), soft_wrap=True)
    if not inspection.groups:
        console.print(Text(_none(inspection)))
        return
    several = len(inspection.clauses) > 1
    for i, line in enumerate(inspection.lines(), 1):
        console.print(Text(f"{i}  {line}" if several else line))
    console.print(_groups(inspection, groups, console.width))
    left = len(inspection.groups) - groups
    if left > 0:
        console.print(Text(f"{left:,} more token texts: --groups {len(inspection.groups)}", "dim"))
    errors = inspection.groups["standard_error"].to_pylist()
    if any(errors):
        console.print(Text("≈ estimated from a sample; ± is one standard error"))
    if None in errors:
        console.print(Text("≥ so many are recorded, and the record may lack others"))


def _none(inspection: Inspection) -> str:
    """What to do where the record has no token that was asked for."""
    from rlobj.runs.configuration import read_settings

    output = read_settings(inspection.run).get("output")
    share = output.get("records_share") if isinstance(output, dict) else None
    if inspection.unknown or not inspection.recorded:
        none = "The record may lack such tokens" if inspection.unknown else "None"
        return (
            f"{none}. With output.records_share={plain_value(share)} it has "
            f"{inspection.recorded:,} of {inspection.population:,.0f} tokens; a new run records a "
            "tenth of the untouched ones with --set output.records_share=0.1. rlobj replay RUN "
            "--rule RULE counts all tokens of the steps with full tables."
        )
    return (
        "None. --where RULE shows recorded tokens that no rule touched, such as "
        '--where "prob < 0.01". rlobj diagnose RUN says why a rule never fires.'
    )


def _groups(inspection: Inspection, groups: int, width: int) -> Table:
    """The largest groups: a row of means, and below it the examples in context."""
    from rlobj.insight.inspecting import about

    clauses = [(row["effect"], row["clause"]) for row in inspection.clauses.to_pylist()]
    factors = any(effect == "reweighted" for effect, _ in clauses)
    digits = {name: places for name, places in NUMBERS.items() if factors or name != "factor"}
    titles = ["gradient" if name == "gradient_norm" else name for name in digits]
    shown = table("", right=("tokens", *titles))
    tokens = inspection.examples(groups)
    lines = in_context(tokens, width - 14 - sum(max(len(title), 7) + 3 for title in titles))
    for row in inspection.groups.slice(0, groups).to_pylist():
        key = row["text"], row["effect"], row["clause"]
        by = f" by {clauses.index(key[1:]) + 1}" if len(clauses) > 1 else ""
        text = f"[{beginning(row['text'], 16)}]"
        by = f" {visible(row['effect'], 20)}{by}"
        title = Text.assemble((text, style_of(row["effect"])), by)
        count = f"{about(row, '≥ ')}{row['tokens']:,.0f}"
        shown.add_section()
        shown.add_row(title, count, *(number(row[name], places) for name, places in digits.items()))
        for token, line in zip(tokens, lines, strict=True):
            if key == (token["text"], token["effect"], token["clause"]):
                numbers = (number(token[name], places) for name, places in digits.items())
                cells = (f"step {token['step']}", *numbers)
                shown.add_row(line, *(Text(cell, "dim") for cell in cells))
    return shown
