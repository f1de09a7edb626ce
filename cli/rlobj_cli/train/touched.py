"""The end of a run in a picture: tokens that the objective touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.insight import Inspection, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.outcomes import percent
from rlobj.objectives.clauses import flat
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Rule
from rlobj.objectives.rules.nodes import Logic
from rlobj_cli.screen.console import number, table, working
from rlobj_cli.screen.tokens import beginning, in_context

SHOWN = 6
"""Tokens in context."""
MOST = 8
"""Texts of tokens that are counted."""


def show_touched(console: Console, objective: Objective, run: Path) -> None:
    """Print what the objective did to tokens, from the record of a finished run.

    An objective without rules prints nothing.
    """
    if not _rules(objective):
        return
    try:
        with working(console, "reading the record"):
            found = inspect(run, examples=1)
    except RlobjError as error:
        console.print(Text(str(error), style="yellow"), soft_wrap=True)
        return
    if not found.groups:
        _show_untouched(console, objective, found)
        return
    for line in (found.total, *found.lines()[:3]):
        console.print(Text(line))
    _show_examples(console, found)
    most = [
        f"[{beginning(row['text'], 12)}] {'≈ ' * found.estimated}{row['tokens']:,.0f}"
        for row in found.groups.slice(0, MOST).to_pylist()
    ]
    console.print(Text.assemble(("most often  ", "dim"), "  ".join(most)))
    console.print()


def _rules(objective: Objective) -> dict[str, tuple[Any, list[str]]]:
    """What touches tokens, by its text: a rule or a number, and its fields."""
    mismatch = objective.mismatch and objective.mismatch.kind
    return deciding(objective) | ({mismatch: (mismatch, ["mismatch"])} if mismatch else {})


def _show_examples(console: Console, found: Inspection) -> None:
    """A token of each of the largest groups of each effect, in its response, the newest first."""
    tokens = sorted(found.examples(SHOWN, mixed=True), key=lambda row: -row["step"])
    names = ["prob", "entropy"] + ["factor"] * any(row["effect"] == "reweighted" for row in tokens)
    shown = table("step", "prompt │ response, the token in [ ]", right=names)
    lines = in_context(tokens, console.width - 9 - 10 * len(names))
    for row, line in zip(tokens, lines, strict=True):
        shown.add_row(str(row["step"]), line, *(number(row[name], 4) for name in names))
    console.print(shown)


def _show_untouched(console: Console, objective: Objective, found: Inspection) -> None:
    """That no token was touched, and how often the parts of a rule held by themselves."""
    for text, (rule, fields) in _rules(objective).items():
        names = " and ".join(fields).replace("switch", "surrogate")
        line = f"{names} touched none of {found.population:,.0f} tokens:  {text}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
        for part in flat(rule, Logic, "&") if isinstance(rule, Rule) else ():
            try:
                held = inspect(found.run, where=part, examples=0)
            except ConfigError:  # it needs all tokens of an update, or a column without a record
                continue
            share = percent(held.count / max(held.population, 1))
            console.print(Text(f"  {part} held for {'≈ ' * held.estimated}{share} of the tokens"))
    console.print(Text("So the run equals one without it.\n", style="yellow"))
