"""`rlobj inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.reporting import visible
from rlobj_cli.screen.console import loading, number, reading, table
from rlobj_cli.screen.options import option

if TYPE_CHECKING:
    from rlobj.insight import Inspection

NUMBERS = (("prob", 4), ("entropy", 3), ("advantage", 2), ("gradient_norm", 3))
"""Columns of tokens on the screen, with their digits."""


def inspect(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run, finished or not.")],
    step: Annotated[int | None, option(None, "--step N", "Only this step.", min=1)] = None,
    dropped: Annotated[
        bool, option(None, "--dropped", "Only tokens that the objective left out.")
    ] = False,
    where: Annotated[
        str | None,
        option(
            None,
            "--where RULE",
            "All recorded tokens that a rule selects, also those that the objective did not touch. "
            "The rule reads recorded columns, token by token.",
        ),
    ] = None,
    groups: Annotated[
        int, option(None, "--groups N", "Token texts to show, the most frequent first.", min=1)
    ] = 10,
    examples: Annotated[
        int, option(None, "--examples N", "Newest tokens of each to show in context.", min=0)
    ] = 2,
    json: Annotated[
        bool, option(None, "--json", "Print everything as JSON, for other programs.")
    ] = False,
) -> None:
    """Show the tokens that the objective dropped, reweighted or penalised, and why.

    A record has all of these tokens, and a sample of the others.
    Beyond a size it has a sample of both; then counts are estimates, marked ≈.

    [bold]Examples[/bold]

    \b  rlobj inspect runs/stapo-20260101-120000
      rlobj inspect runs/stapo-20260101-120000 --dropped --step 40
      rlobj inspect RUN --where "(prob < 0.001) & (advantage > 0)"
      rlobj inspect RUN --where "(spurious > 0) & (kept > 0)"    missed tokens
      rlobj inspect RUN --json > tokens.json

    [bold]Columns that --where reads[/bold]

    \b  prob logprob surprisal entropy old_prob ratio advantage reward position
      gradient_norm entropy_sensitivity sampler_gap weight factor
      step update response group token inclusion_probability
      kept and spurious: 1 or 0
    """
    console = Console()
    with loading(console):
        from rlobj.insight import inspect as inspect_run
    with reading("reading the record") as progress:
        found = inspect_run(run, step, dropped, where, examples=examples, progress=progress)
    if json:
        typer.echo(found.to_json())
    else:
        show(console, found, groups)


def show(console: Console, found: Inspection, groups: int) -> None:
    """Print the clauses that fired, then the largest groups with their examples in context."""
    first, last = found.steps
    console.print(
        Text.assemble(("rlobj inspect", "bold"), f"  {found.run}, steps {first} to {last}"),
        soft_wrap=True,
    )
    share = found.count / found.population if found.population else 0.0
    count = _count(found.count, found.estimated)
    console.print(
        Text(f"{found.question}: {count} of ≈ {found.population:,.0f} ({share:.3%})\n"),
        soft_wrap=True,
    )
    if not found.groups:
        return
    clauses = [(row["effect"], row["clause"]) for row in found.clauses.to_pylist()]
    console.print(_clauses(found))
    console.print(_groups(found, groups, clauses, console.width))
    left = len(found.groups) - groups
    if left > 0:
        console.print(Text(f"{left:,} more token texts: --groups {len(found.groups)}", "dim"))
    if found.estimated:
        console.print(
            Text("≈ estimated: the record holds a share of these tokens; ± is one standard error")
        )


def _clauses(found: Inspection) -> Table:
    """One row for each clause that fired."""
    judged = any(row["judged"] for row in found.clauses.to_pylist())
    names = ("tokens", "share", *(["spurious"] if judged else []))
    shown = table("", "effect", "clause", right=names)
    for i, row in enumerate(found.clauses.to_pylist(), 1):
        error = f" ± {row['standard_error']:,.0f}" if row["standard_error"] else ""
        texts = [_count(row["tokens"], bool(error)) + error, f"{row['share']:.3%}"]
        texts += [_share(row["spurious"])] if judged else []
        effect, clause = (Text(visible(row[key] or "–", 400)) for key in ("effect", "clause"))
        shown.add_row(f"{i}", effect, clause, *texts)
    return shown


def _groups(found: Inspection, groups: int, clauses: list[tuple[str, str]], width: int) -> Table:
    """The largest groups: a row of means, and below it the examples in context."""
    from rlobj.insight.inspecting import KEYS
    from rlobj_cli.screen.tokens import beginning, in_context, style_of

    titles = ("tokens", *("gradient" if name == "gradient_norm" else name for name, _ in NUMBERS))
    rows: list[tuple[Text | None, list[str]]] = []  # None: the next token in its context
    tokens: list[Mapping[str, Any]] = []
    examples: dict[Any, list[Mapping[str, Any]]] = {}
    for token in found.tokens.to_pylist():
        examples.setdefault(tuple(token[key] for key in KEYS), []).append(token)
    for row in found.groups.slice(0, groups).to_pylist():
        clause = clauses.index((row["effect"], row["clause"])) + 1
        by = f" {visible(row['effect'], 20)}" + (f" by {clause}" if len(clauses) > 1 else "")
        title = Text.assemble((f"[{beginning(row['text'], 24)}]", style_of(row["effect"])), by)
        count = _count(row["tokens"], row["standard_error"] > 0)
        rows.append((title, [count, *_numbers(row)]))
        for token in examples.get(tuple(row[key] for key in KEYS), ()):
            rows.append((None, [f"step {token['step']}", *_numbers(token)]))
            tokens.append(token)
    numbers = [
        len(max(each, key=len)) for each in zip(titles, *(cells for _, cells in rows), strict=True)
    ]
    lines = iter(in_context(tokens, width - sum(numbers) - 3 * len(numbers) - 2))
    shown = table("", right=titles)
    for i, (title, cells) in enumerate(rows):
        if title is not None and i:
            shown.add_section()
        shown.add_row(title or next(lines), *(Text(cell, "" if title else "dim") for cell in cells))
    return shown


def _numbers(row: Mapping[str, Any]) -> list[str]:
    return [number(row[name], digits) for name, digits in NUMBERS]


def _count(tokens: float, estimated: bool) -> str:
    return f"≈ {tokens:,.0f}" if estimated else f"{tokens:,.0f}"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
