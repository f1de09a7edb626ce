"""The rules of a run, and their parts, as the page of tokens shows them."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.insight.filtering import deciding
from rlobj.objectives.objective import Objective
from rlobj.objectives.rules import Expr, Rule
from rlobj.objectives.rules.nodes import Column, Compare, Constant, Cut, Logic, When, operands


def objective_of(settings: Mapping[str, Any]) -> Objective | None:
    """The objective of a run; None if this version or this computer cannot read it."""
    try:
        with without_imports():
            return Objective(**settings["objective"])
    except (ConfigError, ValidationError, TypeError, KeyError):
        return None


def rules_of(objective: Objective | None) -> dict[Expr, str]:
    """What decides about tokens in an objective that may be unknown; see `deciding`."""
    return {} if objective is None else deciding(objective)


def parts_of(expression: Expr) -> list[Rule]:
    """The parts of a rule, or of the conditions in a number."""
    rules = [node.rule for node in expression.walk() if isinstance(node, When)]
    if isinstance(expression, Rule):
        rules = [expression]
    parts = [
        part
        for rule in rules
        for alternative in operands(rule, Logic, "|")
        for part in operands(alternative, Logic, "&")
    ]
    return list(dict.fromkeys(parts))


def part_column(part: Rule) -> str:
    """The column that says of each token whether a part of the run's rules holds."""
    return f"holds:{part}"


def described_rule(rule: Expr, field: str) -> dict[str, Any]:
    """A rule of the run for the panel and the planes of the page."""
    parts = [
        {"text": str(part), "column": part_column(part), "bounds": [*_bounds(part)]}
        for part in parts_of(rule)
    ]
    return {"field": field, "parts": parts}


def _bounds(rule: Expr | None) -> Iterator[dict[str, Any]]:
    """The bounds of a rule on single columns; that of a cut has no number yet."""
    match rule:
        case Compare(operator, Column(name), Constant(value)):
            below = operator.startswith("<")
            yield {"text": str(rule), "column": name, "value": value, "below": below}
        case Cut(method, Column(name)):
            yield {"text": str(rule), "column": name, "value": None, "below": method == "bottom"}
            yield from _bounds(rule.within)
