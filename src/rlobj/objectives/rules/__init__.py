"""Rules over the columns of a TokenBatch, in Python and as text.

See `rlobj.objectives.rules.operators` for the language."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.columns import COLUMNS, declared
from rlobj.objectives.rules.expression import Expr, Level
from rlobj.objectives.rules.nodes import (
    Column,
    Constant,
    Controlled,
    CustomRule,
    Cut,
    Quantile,
    Sample,
    When,
)
from rlobj.objectives.rules.operators import Number, Rule, as_number, when
from rlobj.objectives.rules.parsing import parse

__all__ = [
    "COLUMNS",
    "Column",
    "Constant",
    "Controlled",
    "CustomRule",
    "Cut",
    "Expr",
    "Level",
    "Number",
    "NumberField",
    "Quantile",
    "Rule",
    "RuleField",
    "Sample",
    "When",
    "as_number",
    "declared",
    "parse",
    "read_rule",
    "when",
]


def read_rule(value: Any) -> Rule:
    """A rule from a rule or from text.

    Raises:
        ConfigError: the text cannot be parsed, or the value is not a rule.
    """
    value = parse(value) if isinstance(value, str) else value
    if not isinstance(value, Rule):
        raise ConfigError(f"expected a rule such as 'prob < 0.002', got {str(value)!r}")
    return value


RuleField = Annotated[
    InstanceOf[Rule],
    BeforeValidator(read_rule),
    PlainSerializer(str),
    WithJsonSchema({"type": "string"}),
]
"""A pydantic field for a Rule, serialized as text."""

NumberField = Annotated[
    InstanceOf[Number],
    BeforeValidator(as_number),
    PlainSerializer(lambda e: e.value if isinstance(e, Constant) else str(e)),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""A pydantic field for a Number, serialized as text or as a number."""
