"""Rules over the columns of a TokenBatch, in Python and as text.

operators    the language: columns and functions as Python objects
columns      the names of columns and functions
parsing      text -> expression
nodes        numbers and rules with their methods, and each kind of expression
expression   Expr, the base of all: its level, its parts and its text
populations  what expressions about many tokens have in common
arguments    checks of arguments
custom       rules written in Python

This module has the pydantic fields for rules and numbers. `rlobj.objectives.frame` evaluates them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from rlobj.base.errors import ConfigError, reported
from rlobj.objectives.rules.columns import (
    COLUMNS,
    FUNCTIONS,
    ColumnLevel,
    declared,
    levels_of,
    readable_columns,
    score_columns,
)
from rlobj.objectives.rules.custom import CustomRule, custom_rule
from rlobj.objectives.rules.expression import Expr, Level
from rlobj.objectives.rules.nodes import (
    SAMPLER_KNOWN,
    Constant,
    NamedNumber,
    NamedRule,
    Number,
    Rule,
    as_number,
    outside,
)
from rlobj.objectives.rules.parsing import parse

__all__ = [
    "COLUMNS",
    "NAMES",
    "ColumnLevel",
    "CustomRule",
    "Expr",
    "Let",
    "Level",
    "Number",
    "NumberField",
    "OwnColumns",
    "Rule",
    "RuleField",
    "RuleList",
    "as_number",
    "declared",
    "levels_of",
    "outside",
    "parse",
    "read_let",
    "read_rule",
    "readable_columns",
    "score_columns",
]


NAMES = (*COLUMNS, *FUNCTIONS, SAMPLER_KNOWN)
"""Names that a column of one's own cannot have."""


def read_rule(value: Any) -> Rule:
    """A rule from a rule, from text, or from {kind: custom, target: "pkg.module:MyRule", ...}.

    Raises:
        ConfigError: the text cannot be parsed, or the value is not a rule.
    """
    if isinstance(value, dict) and value.get("kind") == "custom":
        settings = {key: setting for key, setting in value.items() if key not in ("kind", "target")}
        return custom_rule(value.get("target"), settings)
    value = parse(value) if isinstance(value, str) else value
    if not isinstance(value, Rule):
        advice = "; there is no == between numbers" if isinstance(value, bool) else ""
        raise ConfigError(f"expected a rule such as 'prob < 0.002', got {str(value)!r}{advice}")
    return value


def read_let(let: Any, columns: Mapping[str, ColumnLevel]) -> dict[str, NamedNumber | NamedRule]:
    """The expressions with names of an objective, in order; each may read those before it.

    Args:
        let: texts, or expressions, by name.
        columns: those that they may read.

    Raises:
        ConfigError: no mapping, a name that is taken, or a text that is no expression.
    """
    named: dict[str, NamedNumber | NamedRule] = {}
    if not isinstance(let, Mapping):
        raise ConfigError(f"let: expected names with their expressions, got {let!r:.60}")
    for name, value in let.items():
        taken = name in (*NAMES, *columns, *named)
        if taken or not (isinstance(name, str) and name.isidentifier() and name[0].islower()):
            expected = "let: expected new names such as 'omega' in lower case"
            raise ConfigError(f"{expected}, got {name!r}")
        with declared(columns, named), reported(ConfigError, f"let.{name}", ConfigError):
            value = value.value if isinstance(value, NamedNumber | NamedRule) else value
            value = parse(value) if isinstance(value, str) else value
            kind = NamedRule if isinstance(value, Rule) else NamedNumber
            named[name] = kind(name, value if isinstance(value, Rule) else as_number(value))
    return named


RuleField = Annotated[
    InstanceOf[Rule],
    BeforeValidator(read_rule),
    PlainSerializer(str),
    WithJsonSchema({"type": "string"}),
]
"""A pydantic field for a Rule, serialized as text."""


def _as_tuple(rules: Any) -> Any:
    if rules is None:
        return ()
    several = [str(rule) for rule in rules] if isinstance(rules, list) else []
    for one, other in pairwise(several):  # a rule without quotes, which YAML has cut at its comma
        if one.count("(") - one.count(")") == other.count(")") - other.count("(") > 0:
            raise ConfigError(
                f"'{one}' and '{other}' look like one rule: in a YAML list, put quotes around a "
                "rule that has a comma"
            )
    return rules if isinstance(rules, (list, tuple)) else (rules,)


RuleList = Annotated[
    tuple[RuleField, ...],
    BeforeValidator(_as_tuple),
    PlainSerializer(lambda rules: [str(rule) for rule in rules] or None),
    WithJsonSchema({"type": ["string", "array", "null"], "items": {"type": "string"}}),
]
"""A pydantic field for a rule or a list of rules; null is no rule."""


def _levels(columns: Any) -> Any:
    if isinstance(columns, Mapping):
        return columns
    if isinstance(columns, (list, tuple)) and all(isinstance(name, str) for name in columns):
        return levels_of(columns)
    raise ConfigError(
        "expected names of columns, [stage], or also what they have one value for: "
        f"{{stage: response}}; got {columns!r:.60}"
    )


def _shortest(columns: Mapping[str, ColumnLevel]) -> Any:
    return [*columns] if {*columns.values()} <= {"token"} else dict(columns)


OwnColumns = Annotated[
    dict[str, ColumnLevel],
    BeforeValidator(_levels),
    PlainSerializer(_shortest),
    WithJsonSchema(
        {
            "type": ["array", "object"],
            "items": {"type": "string"},
            "additionalProperties": {"enum": [*get_args(ColumnLevel)]},
        }
    ),
]
"""A pydantic field for columns of one's own with their levels, or a list of names of tokens'."""


Let = Annotated[
    dict[str, InstanceOf[Expr]],
    PlainSerializer(lambda let: {name: str(node.value) for name, node in let.items()}),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["number", "string"]}}),
]
"""A pydantic field for names of expressions; `read_let` reads it before."""


NumberField = Annotated[
    InstanceOf[Number],
    BeforeValidator(as_number),
    PlainSerializer(lambda e: e.value if isinstance(e, Constant) else str(e)),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""A pydantic field for a Number, serialized as text or as a number."""
