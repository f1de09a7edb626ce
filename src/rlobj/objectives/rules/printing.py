"""Expressions to text: the fewest parentheses that keep `parse(str(e)) == e`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

__all__ = ["ATOM", "COMPARE", "OR", "STRENGTH", "UNARY", "call", "infix", "wrap"]

# Binding strength, as in Python; a printed child weaker than its place gets parentheses.
COMPARE, OR, AND, SUM, PRODUCT, UNARY, ATOM = range(7)
STRENGTH = {"|": OR, "&": AND, "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT}


def wrap(child: Any, place: int) -> str:
    """A child in its place, in parentheses where it binds more weakly."""
    return str(child) if child.strength >= place else f"({child})"


def infix(node: Any) -> str:
    """left operator right, grouping to the left."""
    left, right = wrap(node.left, node.strength), wrap(node.right, node.strength + 1)
    return f"{left} {node.operator} {right}"


def call(node: Any, owner: Any, method: str, first: str, skip: tuple[str, ...]) -> str:
    """owner.method(first, other=...): arguments at their defaults are not printed."""
    arguments = [repr(getattr(node, first))]
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == first or field.name in skip or value == field.default:
            continue
        nested = hasattr(value, "strength")
        arguments.append(f"{field.name}={value if nested else repr(value)}")
    return f"{wrap(owner, ATOM)}.{method}({', '.join(arguments)})"
