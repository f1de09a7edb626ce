"""The end of a run in a picture: tokens that the objective touched, and whether it was right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from rlobj.base.errors import RlobjError
from rlobj.insight import Inspection, inspect
from rlobj.insight.outcomes import Outcome, Spurious, share
from rlobj.insight.samples import in_responses
from rlobj.insight.untouched import reach
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Rule
from rlobj.reporting import visible
from rlobj_cli.screen.charts import sparkline
from rlobj_cli.screen.console import facts_grid, number, table, working
from rlobj_cli.screen.tokens import in_context

SHOWN = 6
"""Tokens in context."""
SHORT = 12
"""Cells of a prompt that has a column of its own."""
WORDS = {"dropped": "silenced"}
"""What is said of tokens by their effect; all other effects are said as they are."""


def show_touched(console: Console, run: Path) -> None:
    """Print what the objective did to tokens, from the record and the metrics of a finished run.

    An objective without rules prints nothing.
    """
    outcome = Outcome.read(run)
    objective = outcome.config.objective
    if not _rules(objective) and objective.mismatch is None:
        return
    try:
        with working(console, "reading the record"):
            found = inspect(run, examples=1)
    except RlobjError as error:  # without a record there is the count of the metrics
        if outcome.dropped:
            console.print(f"left out {share(outcome.dropped, outcome.tokens)} tokens")
        console.print(Text(str(error), style="yellow"), soft_wrap=True)
        return
    if not found.count:
        _show_untouched(console, outcome, run)
        return
    _show_clauses(console, found, outcome)
    _show_examples(console, found)
    if outcome.spurious is not None:
        _show_spurious(console, outcome, outcome.spurious)
    console.print()


def _rules(objective: Objective) -> list[tuple[str, Any]]:
    """The rules that touch tokens, each with its field."""
    fields = [
        ("drop", objective.drop_rule),
        ("keep", objective.keep_rule),
        ("reweight", objective.weight),
        *(("surrogate", rule) for rule in objective.surrogate.rules()),
        *((penalty.kind, penalty.where) for penalty in objective.penalties),
    ]
    return [(name, rule) for name, rule in fields if rule is not None]


def _show_clauses(console: Console, found: Inspection, outcome: Outcome) -> None:
    """How many tokens were touched, and by which part of a rule."""
    rows = found.clauses.to_pylist()
    for row in rows[:3]:
        exact = len(rows) == 1 and row["effect"] == "dropped"
        count = share(outcome.dropped if exact else row["tokens"], outcome.tokens)
        about = "" if exact or not row["standard_error"] else "≈ "
        console.print(
            Text.assemble(
                (f"{WORDS.get(row['effect'], row['effect'])} ", "bold"),
                (f"{about}{count}", "bold cyan"),
                f" of {outcome.tokens:,.0f} tokens by  {visible(row['clause'] or '–', 300)}",
            )
        )


def _show_examples(console: Console, found: Inspection) -> None:
    """The newest token of each of the largest groups, in its response."""
    tokens = found.tokens.to_pylist()
    largest = [(g["text"], g["effect"], g["clause"]) for g in found.groups.to_pylist()]
    tokens.sort(key=lambda row: largest.index((row["text"], row["effect"], row["clause"])))
    tokens = in_responses(found.run, sorted(tokens[:SHOWN], key=lambda row: -row["step"]))
    prompts = [visible(row.get("prompt", ""), 200) for row in tokens]
    short = any(prompts) and max(map(cell_len, prompts)) <= SHORT
    titles = ["step", *(["prompt"] if short else []), "response, the token in [ ]"]
    shown = table(*titles, right=("prob", "entropy"))
    lines = in_context(tokens, console.width - 32 - (SHORT + 2) * short)
    for row, prompt, line in zip(tokens, prompts, lines, strict=True):
        numbers = (number(row["prob"], 4), number(row["entropy"]))
        shown.add_row(str(row["step"]), *([Text(prompt)] if short else []), line, *numbers)
    console.print(shown)


def _show_spurious(console: Console, outcome: Outcome, spurious: Spurious) -> None:
    """Precision and recall of the rule, and whether spurious tokens became rarer."""
    (first, before), (last, after) = spurious.ends
    steps = len(outcome.tenths()[0])
    old, new = first / max(before, 1), last / max(after, 1)
    trend = "shrank" if new < old else "grew" if new > old else "stayed the same"
    dropped = f"of {spurious.dropped:,.0f} silenced tokens are spurious"
    facts = {
        "spurious": f"{share(spurious.tokens, outcome.tokens)} of the tokens depart from every "
        "valid derivation, in responses that were graded right",
        "precision": f"{_percent(spurious.precision)}  {spurious.caught:,.0f} {dropped}",
        "recall": f"{_percent(spurious.recall)}  {spurious.caught:,.0f} of "
        f"{spurious.tokens:,.0f} spurious tokens were silenced",
        "their share": f"{trend}  {sparkline(spurious.shares, 10)}  {share(first, before)} in the "
        f"first {steps} steps → {share(last, after)} in the last {steps}",
    }
    console.print(facts_grid(facts))


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _show_untouched(console: Console, outcome: Outcome, run: Path) -> None:
    """That no token was touched, and what the rule lacked."""
    for field, rule in _rules(outcome.config.objective):
        text = f"{field} touched none of {outcome.tokens:,.0f} tokens:  {rule}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
        for line in _lacks(run, rule) if isinstance(rule, Rule) else ():
            console.print(Text(f"  {line}"), soft_wrap=True)
    console.print(Text("The run equals one without it.\n", style="yellow"))


def _lacks(run: Path, rule: Rule) -> Sequence[str]:
    """One line for each part of a rule: on how many tokens it held."""
    lines = []
    for part in reach(run, rule):
        if not part.readable:
            lines.append(f"{part.rule}: depends on all tokens of an update")
        elif math.isnan(part.nearest) or part.tokens:
            lines.append(f"{part.rule}: held for ≈ {part.tokens:,.0f} tokens")
        else:
            lines.append(
                f"{part.rule}: never held; the closest value was {part.nearest:.4g}, so it takes "
                "another threshold"
            )
    return lines
