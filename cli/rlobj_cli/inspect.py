"""`rlobj inspect`: the tokens that a run's objective dropped, reweighted or penalised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlobj.base.errors import ConfigError
from rlobj.reporting import visible
from rlobj.reporting.terminal import Screen, importing, number, reading, table, working
from rlobj_cli.screen.console import require_folder, show_page
from rlobj_cli.screen.options import Json, Step, Trust

if TYPE_CHECKING:
    from rlobj.insight import Inspection


NUMBERS = {"prob": 4, "entropy": 3, "value": 3, "advantage": 2, "gradient_norm": 3}
NUMBERS |= {"factor": 3, "staleness": 1}
"""Columns of tokens on the screen, with their digits."""
TITLES = {"gradient_norm": "gradient", "value": "V"}
"""Names of columns on the screen that differ."""
GROUPS, EXAMPLES = 10, 2
"""Token texts on the screen, the most frequent first, and tokens of each in context."""
NONE = 'None. --where RULE selects among all tokens, touched or not, such as --where "prob < 0.01".'
"""What to do where no token was found."""


def inspect(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="Folder of a run, or a file of traces.")
    ],
    step: Step = None,
    dropped: Annotated[
        bool, typer.Option("--dropped", help="Only tokens that the objective dropped.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="All tokens that a rule selects, also those that the objective did not touch, in "
            "the steps with full tables. The rule reads recorded columns, token by token.",
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only tokens with this text.")
    ] = None,
    json: Json = False,
    html: Annotated[
        bool,
        typer.Option("--html", help="Write a page with all tokens; RUN/inspect.html or --out."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where --html writes the page.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Show the tokens that the objective dropped, reweighted or penalised, and why.

    Every count is exact. The record has up to output.records of these tokens of an
    update; --where looks at all tokens of the steps with full tables.

    [bold]Examples[/bold]

    \b  rlobj inspect runs/stapo-20260101-120000
      rlobj inspect runs/stapo-20260101-120000 --dropped --step 40
      rlobj inspect RUN --where "(prob < 0.001) & (advantage > 0)"
      rlobj inspect RUN --where "(prob < 0.01) & (kept > 0)"    rare tokens that stayed
      rlobj inspect RUN --json > tokens.json
      rlobj inspect RUN --html                a page to explore all tokens

    [bold]Columns that --where reads[/bold]

    \b  prob logprob surprisal entropy old_prob ratio advantage reward position
      gradient_norm entropy_sensitivity sampler_gap staleness weight factor
      value, the V of a run that trains one
      step update response group token
      kept: 1 or 0; spurious: the same, in tasks that judge tokens, such as scratchpad
    """
    console = Screen()
    if html and (step or dropped or where is not None or text is not None or json or trust):
        raise ConfigError("--html writes all tokens: give no option beside it but --out")
    if out and not html:
        raise ConfigError("--out is the file of a page: add --html")
    if html:
        require_folder(out)
        with importing("torch"):
            from rlobj.insight import write_inspection_page
        with reading("reading the tokens") as progress:
            path = write_inspection_page(run, out, progress=progress)
        return show_page(console, path)
    with importing("torch"):
        from rlobj.insight import inspect as inspect_run
    with working(console, "reading the record"):
        inspection = inspect_run(
            run, step, dropped, where, text=text, examples=EXAMPLES, trust=trust
        )
    if json:
        typer.echo(inspection.to_json())
    else:
        show(console, inspection, GROUPS)


def show(console: Console, inspection: Inspection, groups: int) -> None:
    """Print the clauses that fired, then the largest groups with their examples in context."""
    console.print(Text.assemble(("rlobj inspect", "bold"), "  ", inspection.title), soft_wrap=True)
    console.print(Text(inspection.total), soft_wrap=True)
    if not inspection.clauses:
        console.print(Text(NONE))
        return
    several = len(inspection.clauses) > 1
    for i, line in enumerate(inspection.lines(), 1):
        console.print(Text(f"{i}  {line}" if several else line))
    console.print(_groups(inspection, groups, console.width))
    left = len(inspection.groups) - groups
    if left > 0:
        console.print(Text(f"{left:,} more token texts: --json", "dim"))


def _groups(inspection: Inspection, groups: int, width: int) -> Table:
    """The largest groups: a row of means, and below it the examples in context."""
    clauses = [(row["effect"], row["clause"]) for row in inspection.clauses.to_pylist()]
    shown_groups = inspection.groups.slice(0, groups).to_pylist()
    absent = set() if any(effect == "reweighted" for effect, _ in clauses) else {"factor"}
    absent |= {n for n in ("staleness", "value") if not any(row[n] for row in shown_groups)}
    digits = {name: places for name, places in NUMBERS.items() if name not in absent}
    titles = [TITLES.get(name, name) for name in digits]
    head = "tokens" if inspection.complete else "recorded"
    shown = table("", right=(head, *titles))
    tokens = inspection.examples(groups)
    lines = in_context(tokens, width - 14 - sum(max(len(title), 7) + 3 for title in titles))
    for row in shown_groups:
        key = row["text"], row["effect"], row["clause"]
        by = f" by {clauses.index(key[1:]) + 1}" if len(clauses) > 1 else ""
        text = f"[{beginning(row['text'], 16)}]"
        by = f" {visible(row['effect'], 20)}{by}"
        title = Text.assemble((text, _STYLES.get(row["effect"], "bold yellow")), by)
        shown.add_section()
        shown.add_row(
            title,
            f"{row['recorded']:,}",
            *(number(row[name], places) for name, places in digits.items()),
        )
        for token, line in zip(tokens, lines, strict=True):
            if key == (token["text"], token["effect"], token["clause"]):
                numbers = (number(token[name], places) for name, places in digits.items())
                began = f", {visible(token['began'], 20)}" if token["began"] else ""
                cells = (f"step {token['step']}{began}", *numbers)
                shown.add_row(line, *(Text(cell, "dim") for cell in cells))
    return shown


LONGEST = 24
"""Cells of a marked token; a longer one is cut."""
_STYLES = {"dropped": "bold red", "masked": "bold red", "untouched": "bold"}
"""Style of the marked token by its effect; all other effects are yellow."""


def in_context(rows: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """Lines of at most `width` cells: what stands before a token, the token in [ ], what follows.

    The tokens stand below each other, so that the eye finds them.

    Args:
        rows: each with `before`, `text`, `after` and `effect`.
        width: in cells.
    """
    marked = [f"[{beginning(row['text'], min(LONGEST, max(width - 2, 1)))}]" for row in rows]
    ends = [[cell_len(visible(row[name][:width])) for row in rows] for name in ("before", "after")]
    left, right = (max(lengths, default=0) for lengths in ends)
    room = max(width - max(map(cell_len, marked), default=0), 0)
    if left + right > room:
        left = min(left, max(room - right, room // 2))
    return [
        Text.assemble(
            end(row["before"], left),
            (mark, _STYLES.get(row["effect"], "bold yellow")),
            beginning(row["after"], width - left - cell_len(mark)),
        )
        for row, mark in zip(rows, marked, strict=True)
    ]


def beginning(text: str, width: int) -> str:
    """The beginning of a text in at most `width` cells, without control characters."""
    text = visible(text[: max(width, 0) + 1])
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def end(text: str, width: int) -> str:
    """The end of a text in exactly `width` cells, without control characters."""
    text = visible(text[-width - 1 :])
    if cell_len(text) > width:
        while cell_len(text) >= width and text:
            text = text[1:]
        text = f"…{text}" if width else ""
    return " " * (width - cell_len(text)) + text
