"""Rules over the columns of a TokenBatch, in Python and as text.

columns      the columns, and the names that an objective adds
nodes        numbers and rules with their methods, and each kind of expression
operators    the language: columns and functions as Python objects
parsing      text -> expression

This module has the pydantic fields for rules and numbers. `rlobj.objectives.frame` evaluates them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator, InstanceOf, PlainSerializer, WithJsonSchema

from rlobj.base.errors import ConfigError, reported
from rlobj.base.targets import held
from rlobj.objectives.rules.columns import COLUMNS, ColumnLevel, Level, Scope, score_columns
from rlobj.objectives.rules.nodes import (
    Constant,
    CustomRule,
    Expr,
    NamedNumber,
    NamedRule,
    Number,
    Rule,
    as_number,
    outside,
)
from rlobj.objectives.rules.operators import NAMES
from rlobj.objectives.rules.parsing import custom_rule, parse

_SCOPE: ContextVar[Scope | None] = ContextVar("_SCOPE", default=None)
"""What pydantic fields may read: they are validated without their objective."""


def reading(scope: Scope) -> AbstractContextManager[None]:
    """Within this context, the texts of fields may read the names of a scope."""
    return held(_SCOPE, scope)


def read_number(value: Any) -> Number:
    """A number from an expression, a number or text.

    Raises:
        ConfigError: the text cannot be parsed, or the value is not a number.
    """
    return as_number(parse(value, _SCOPE.get()) if isinstance(value, str) else value)


def read_rule(value: Any) -> Rule:
    """A rule from a rule, from text, or from {kind: custom, target: "pkg.module:MyRule", ...}.

    Raises:
        ConfigError: the text cannot be parsed, or the value is not a rule.
    """
    if isinstance(value, dict) and value.get("kind") == "custom":
        settings = {key: setting for key, setting in value.items() if key != "kind"}
        return custom_rule(settings.pop("target", None), **settings)
    value = parse(value, _SCOPE.get()) if isinstance(value, str) else value
    if not isinstance(value, Rule):
        raise ConfigError(f"expected a rule such as 'prob < 0.002', got {str(value)!r}")
    return value


def read_let(let: Any, scope: Scope) -> Scope:
    """A scope with the expressions that `let` names, in order; each may read those before it.

    Args:
        let: texts, or expressions, by name.
        scope: what they may read.

    Raises:
        ConfigError: no mapping, a name that is taken, or a text that is no expression.
    """
    if not isinstance(let, Mapping):
        raise ConfigError(f"let: expected names with their expressions, got {let!r:.60}")
    for name, value in let.items():
        taken = name in (*NAMES, *scope.columns, *scope.named)
        if taken or not (isinstance(name, str) and name.isidentifier() and name[0].islower()):
            raise ConfigError(f"let: expected new names such as omega, got {name!r}")
        with reported(ConfigError, f"let.{name}", ConfigError):
            value = value.value if isinstance(value, NamedNumber | NamedRule) else value
            value = parse(value, scope) if isinstance(value, str) else value
            rule = isinstance(value, Rule)
            named = NamedRule(name, value) if rule else NamedNumber(name, as_number(value))
            scope = replace(scope, named={**scope.named, name: named})
    return scope


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
        return dict.fromkeys(columns, "token")
    raise ConfigError(f"expected names, [stage], or levels, {{stage: turn}}; got {columns!r:.60}")


OwnColumns = Annotated[
    dict[str, ColumnLevel],
    BeforeValidator(_levels),
    PlainSerializer(lambda levels: [*levels] if {*levels.values()} <= {"token"} else dict(levels)),
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
    BeforeValidator(read_number),
    PlainSerializer(lambda e: e.value if isinstance(e, Constant) else str(e)),
    WithJsonSchema({"type": ["number", "string"]}),
]
"""A pydantic field for a Number, serialized as text or as a number."""
