"""Expr, the base of all expressions, and their text.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

__all__ = ["Expr"]

COMPARE, OR, AND, SUM, PRODUCT, UNARY, ATOM = range(7)
"""How strongly an expression binds its parts, as in Python."""

_STRENGTH = {"|": OR, "&": AND, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT}


class Expr:
    """An expression: a `Number` (one number per token) or a `Rule` (true or false per token).

    `==` is true if two expressions have the same text; it does not compare tokens.
    """

    def __bool__(self) -> bool:
        raise TypeError(
            f"'{self}' is a rule over tokens, not True or False. Write (0 < prob) & (prob < 1) "
            "instead of 0 < prob < 1, and &, |, ~ instead of and, or, not."
        )

    def __str__(self) -> str:
        return _text(self)

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is built from."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Expr))

    def walk(self) -> tuple[Expr, ...]:
        """This expression and all expressions inside it."""
        return (self, *(node for child in self.children() for node in child.walk()))


def _text(node: Any) -> str:
    match type(node).__name__:
        case "Column" | "Controlled":
            return node.name
        case "Constant":
            return repr(node.value)
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
        case "Magnitude":
            return f"abs({node.operand})"
        case "When":
            return f"when({node.rule}, {node.then}, {node.otherwise})"
        case "Cut":
            return _call(node, node.value, node.side, "fraction", skip=("side", "value"))
        case "Quantile":
            return _call(node, node.value, "quantile", "q", skip=("value",))
        case "Sample":
            return _call(node, node.rule, "sample", "amount", skip=("rule",))
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


def _call(node: Any, owner: Expr, method: str, first: str, skip: tuple[str, ...]) -> str:
    """`owner.method(first, other=...)`, without arguments at their defaults."""
    arguments = [repr(getattr(node, first))]
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == first or field.name in skip or value == field.default:
            continue
        arguments.append(f"{field.name}={value if isinstance(value, Expr) else repr(value)}")
    return f"{_within(owner, ATOM)}.{method}({', '.join(arguments)})"
