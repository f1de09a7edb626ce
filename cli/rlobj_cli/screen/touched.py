"""The end of a run in a picture: tokens that the objective touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.insight import Inspection, inspect
from rlobj.insight.filtering import deciding
from rlobj.insight.inspecting import about
from rlobj.insight.numbers import percent, share_in_metrics
from rlobj.insight.outcomes import Outcome
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Rule
from rlobj.objectives.rules.nodes import Logic, operands
from rlobj.reporting.terminal import number, table, working
from rlobj_cli.screen.context import beginning, in_context

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
            inspection = inspect(run, examples=1)
    except RlobjError as error:
        console.print(Text(str(error), style="yellow"), soft_wrap=True)
        return
    if inspection.unknown:
        console.print(Text(f"{inspection.total}\n", style="yellow"), soft_wrap=True)
        return
    if not inspection.groups:
        _show_untouched(console, objective, inspection)
        return
    for line in (inspection.total, *inspection.lines()[:3]):
        console.print(Text(line))
    _show_examples(console, inspection)
    most = [
        f"[{beginning(row['text'], 12)}] {about(row, '≥ ')}{row['tokens']:,.0f}"
        for row in inspection.groups.slice(0, MOST).to_pylist()
    ]
    console.print(Text.assemble(("most often  ", "dim"), "  ".join(most)))
    console.print()


def _rules(objective: Objective) -> dict[str, tuple[Any, list[str]]]:
    """What touches tokens, by its text: a rule or a number, and its fields."""
    mismatch = objective.mismatch and objective.mismatch.kind
    return deciding(objective) | ({mismatch: (mismatch, ["mismatch"])} if mismatch else {})


def _show_examples(console: Console, inspection: Inspection) -> None:
    """A token of each of the largest groups of each effect, in its response, the newest first."""
    tokens = sorted(inspection.examples(SHOWN, mixed=True), key=lambda row: -row["step"])
    names = ["prob", "entropy"] + ["factor"] * any(row["effect"] == "reweighted" for row in tokens)
    shown = table("step", "prompt │ response, the token in [ ]", right=names)
    lines = in_context(tokens, console.width - 9 - 10 * len(names))
    for row, line in zip(tokens, lines, strict=True):
        shown.add_row(str(row["step"]), line, *(number(row[name], 4) for name in names))
    console.print(shown)


def _show_untouched(console: Console, objective: Objective, inspection: Inspection) -> None:
    """That no token was touched, and how often the parts of a rule held by themselves."""
    for text, (rule, fields) in _rules(objective).items():
        names = " and ".join(fields).replace("switch", "surrogate")
        line = f"{names} touched none of {inspection.population:,.0f} tokens:  {text}"
        console.print(Text(line, style="yellow"), soft_wrap=True)
        for part in operands(rule, Logic, "&") if isinstance(rule, Rule) else ():
            if held := _held(inspection.run, part):
                console.print(Text(f"  {part} {held}"), soft_wrap=True)
    console.print(Text("So the run equals one without it.\n", style="yellow"))


def _held(run: Path, part: Rule) -> str:
    """How often a part of a rule held by itself; "" if nothing tells it."""
    selected = share_in_metrics(Outcome.read(run).steps, f"selected/{part}")
    if selected is not None:
        return f"selected {percent(selected)} of its population, the mean of the updates"
    try:
        held = inspect(run, where=part, examples=0)
    except ConfigError:  # it needs all tokens of an update, or a column without a record
        return ""
    if held.estimated and held.known_share is not None:
        return f"held for {percent(held.known_share)} of the tokens, the mean of the updates"
    error, whole = held.standard_error, max(held.population, 1)
    count = "an unknown share" if held.unknown else percent(held.count / whole)
    if error:
        count = f"≈ {count} ± {percent(error / whole)}"
    elif held.estimated:
        count = count if held.unknown else f"at least {count}"
        most = f", at most about {percent((held.at_most or 0.0) / whole)}" if held.bounded else ""
        recorded = f"{held.recorded:,} of {whole:,.0f} were recorded"
        return f"held for {count} of the tokens{most}: {recorded}"
    unknown = f", unknown for {percent(held.undecided / whole)}" if held.undecided else ""
    return f"held for {count} of the tokens{unknown}"
