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
from rlobj.objectives.rules import Controlled, Expr, Rule
from rlobj.reporting import visible
from rlobj_cli.screen.charts import sparkline
from rlobj_cli.screen.console import facts_grid, number, table, working
from rlobj_cli.screen.tokens import beginning, in_context

SHOWN = 6
"""Tokens in context."""
MOST = 8
"""Texts of tokens that are counted."""
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
    if not _rules(objective):
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
    most = [
        f"[{beginning(row['text'], 12)}] {'≈ ' * found.estimated}{row['tokens']:,.0f}"
        for row in found.groups.slice(0, MOST).to_pylist()
    ]
    facts = {"most often": "  ".join(most)}
    if outcome.spurious is not None:
        facts |= _spurious_facts(outcome, outcome.spurious)
    console.print(facts_grid(facts))
    console.print()


def _rules(objective: Objective) -> list[tuple[str, Any]]:
    """The rules that touch tokens, each with its field."""
    fields = [
        ("drop", objective.drop_rule),
        ("keep", objective.keep_rule),
        ("reweight", objective.weight),
        *(("surrogate", rule) for rule in objective.surrogate.rules()),
        *((penalty.kind, penalty.where) for penalty in objective.penalties),
        ("mismatch", objective.mismatch and objective.mismatch.kind),
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
    names = ["prob", "entropy"] + ["factor"] * any(row["effect"] == "reweighted" for row in tokens)
    shown = table(*titles, right=names)
    wide = max(map(cell_len, ["prompt", *prompts])) + 3 if short else 0
    lines = in_context(tokens, console.width - 9 - wide - 10 * len(names))
    for row, prompt, line in zip(tokens, prompts, lines, strict=True):
        numbers = (number(row[name], 4) for name in names)
        shown.add_row(str(row["step"]), *([Text(prompt)] if short else []), line, *numbers)
    console.print(shown)


def _spurious_facts(outcome: Outcome, spurious: Spurious) -> dict[str, str]:
    """Precision and recall of the rule, and whether spurious tokens became rarer."""
    (first, before), (last, after) = spurious.ends
    steps = len(outcome.tenths()[0])
    few = "step" if steps == 1 else f"{steps} steps"
    change = last / max(after, 1) - first / max(before, 1)
    error = math.hypot(math.sqrt(first) / max(before, 1), math.sqrt(last) / max(after, 1))
    trend = "hardly changed" if abs(change) <= 2 * error else "shrank" if change < 0 else "grew"
    return {
        "spurious": f"{share(spurious.tokens, outcome.tokens)} of the tokens depart from every "
        "valid derivation, in responses that were graded right",
        "precision": f"{_percent(spurious.precision)}  {spurious.caught:,.0f} of "
        f"{spurious.dropped:,.0f} tokens that were silenced in right responses are spurious",
        "recall": f"{_percent(spurious.recall)}  {spurious.caught:,.0f} of "
        f"{spurious.tokens:,.0f} spurious tokens were silenced",
        "over time": f"their share {trend}  {sparkline(spurious.shares, 10)}  "
        f"{share(first, before)} in the first {few} → {share(last, after)} in the last {few}",
    }


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.1%}"


def _show_untouched(console: Console, outcome: Outcome, run: Path) -> None:
    """That no token was touched, and what the rule lacked."""
    for field, rule in _rules(outcome.config.objective):
        text = f"{field} touched none of {outcome.tokens:,.0f} tokens:  {rule}"
        console.print(Text(text, style="yellow"), soft_wrap=True)
        for node in rule.walk() if isinstance(rule, Expr) else ():
            if isinstance(node, Controlled):
                ends = map(number, outcome.ends(f"controller/{node}"))
                console.print(Text(f"  {node} was {' at first and '.join(ends)} at last"))
        for line in _lacks(run, rule) if isinstance(rule, Rule) else ():
            console.print(Text(f"  {line}"), soft_wrap=True)
    console.print(Text("So the run equals one without it.\n", style="yellow"))


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
