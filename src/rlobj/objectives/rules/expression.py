"""Expr, the base of all expressions: its level, its parts and its text.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`.
"""

from __future__ import annotations

import math
from dataclasses import fields
from enum import IntEnum
from typing import Any, ClassVar

COMPARE, OR, AND, SUM, PRODUCT, UNARY, POWER, ATOM = range(8)
"""How strongly an expression binds its parts, as in Python."""

_STRENGTH = {"|": OR, "&": AND, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "**": POWER}


class Level(IntEnum):
    """What an expression has one value for."""

    UPDATE = 0
    RESPONSE = 1
    """Aggregates by group, too: the responses of a group have the same value."""
    TOKEN = 2


class Expr:
    """An expression: a `Number` (one number per token) or a `Rule` (true or false per token).

    `==` is true if two expressions have the same text; it does not compare tokens.
    """

    is_rule: ClassVar[bool]
    _nodes: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls) -> None:
        Expr._nodes.setdefault(cls.__name__, cls)

    def __bool__(self) -> bool:
        raise TypeError(
            f"'{self}' is a rule over tokens, not True or False. Write (0 < prob) & (prob < 1) "
            "instead of 0 < prob < 1, and &, |, ~ instead of and, or, not."
        )

    def __str__(self) -> str:
        return _text(self)

    @property
    def level(self) -> Level:
        """The finest level of the parts; constants have one value for the update."""
        return max((child.level for child in self.children()), default=Level.UPDATE)

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is built from."""
        found: list[Expr] = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            values = value if isinstance(value, tuple) else (value,)
            found += [part for part in values if isinstance(part, Expr)]
        return tuple(found)

    def walk(self) -> tuple[Expr, ...]:
        """This expression and all expressions inside it."""
        return (self, *(node for child in self.children() for node in child.walk()))


def make(node: str, *values: Any) -> Any:
    """The node of this class name: operators build nodes that are defined after them."""
    return Expr._nodes[node](*values)


def _text(node: Any) -> str:
    match type(node).__name__:
        case "Column" | "Controlled":
            return node.name
        case "Constant":
            return repr(node.value)
        case "NamedReward":
            return f"reward({node.name!r})"
        case "Arithmetic" if node.operator == "**":  # groups to the right
            return f"{_within(node.left, ATOM)} ** {_within(node.right, UNARY)}"
        case "Arithmetic" | "Logic":  # equal operators group to the left
            strength = _strength(node)
            left, right = _within(node.left, strength), _within(node.right, strength + 1)
            return f"{left} {node.operator} {right}"
        case "Compare":
            return f"{_within(node.left, OR)} {node.operator} {_within(node.right, OR)}"
        case "Negative" if type(node.operand).__name__ == "Constant":
            return f"-({node.operand})"  # -0.5 is a constant
        case "Negative":
            return f"-{_within(node.operand, UNARY)}"
        case "Not":
            return f"~{_within(node.operand, UNARY)}"
        case "Function":
            return f"{node.name}({', '.join(map(str, node.arguments))})"
        case "When":
            return f"when({node.rule}, {node.then}, {node.otherwise})"
        case "Cut":
            return _method(node, node.value, node.side, "fraction", skip=("side", "value"))
        case "Quantile":
            return _method(node, node.value, "quantile", "q", skip=("value",))
        case "Sample":
            return _method(node, node.rule, "sample", "amount", skip=("rule",))
        case "Aggregate" | "Quantified" | "Rank":
            return _method(node, node.of, node.statistic, skip=("of", "statistic"))
        case "Scan":
            return _method(node, node.value, f"{node.side}_sum", skip=("value", "side"))
    if hasattr(node, "target"):
        return f"custom({', '.join([repr(node.target), *_settings(node)])})"
    raise AssertionError(f"{type(node).__name__} has no text")


def _strength(node: Any) -> int:
    match type(node).__name__:
        case "Arithmetic" | "Logic":
            return _STRENGTH[node.operator]
        case "Compare":
            return COMPARE
        case "Negative" | "Not":
            return UNARY
        case "Constant" if math.copysign(1, node.value) < 0:
            return UNARY
    return ATOM


def _within(child: Expr, strength: int) -> str:
    """The text of a child, in parentheses if it binds more weakly than `strength`."""
    return str(child) if _strength(child) >= strength else f"({child})"


def _method(node: Any, owner: Expr, name: str, first: str = "", skip: tuple[str, ...] = ()) -> str:
    """`owner.name(first, other=...)`, without arguments at their defaults."""
    arguments = [_value(getattr(node, first))] if first else []
    arguments += _settings(node, (*skip, first))
    constant = type(owner).__name__ == "Constant"  # "0.prefix_sum()" cannot be read
    text = f"({owner})" if constant else _within(owner, ATOM)
    return f"{text}.{name}({', '.join(arguments)})"


def _settings(node: Any, skip: tuple[str, ...] = ()) -> list[str]:
    """`name=value` of each field that is not at its default."""
    values = {field: getattr(node, field.name) for field in fields(node)}
    return [
        f"{field.name}={_value(value)}"
        for field, value in values.items()
        if field.name not in skip and value != field.default
    ]


def _value(value: Any) -> str:
    return str(value) if isinstance(value, Expr) else repr(value)
