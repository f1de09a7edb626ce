"""Expr, the base of all expressions: its level, its parts, and how its text is put together.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar

LONGEST = 1000
"""Expressions in a text in which the names of `let` are written out."""
COMPARE, OR, AND, SUM, PRODUCT, UNARY, POWER, NUMBER, ATOM = range(9)
"""How strongly an expression binds its parts, as in Python; `0.mean()` cannot be read."""
_BINDING = {
    **dict.fromkeys(("<", "<=", ">", ">="), (COMPARE, OR, OR)),
    **{"|": (OR, OR, AND), "&": (AND, AND, SUM)},
    **dict.fromkeys("+-", (SUM, SUM, PRODUCT)),
    **dict.fromkeys("*/", (PRODUCT, PRODUCT, UNARY)),
    "**": (POWER, NUMBER, UNARY),  # groups to the right
}
"""How strongly an operator binds, and how strongly its left and right side must bind."""


class Level(IntEnum):
    """What an expression has one value for."""

    UPDATE = 0
    RESPONSE = 1
    """Aggregates by group, too: the responses of a group have the same value."""
    TURN = 2
    """A turn of a response; aggregates by the group's turns of one number, too."""
    TOKEN = 3


class Expr:
    """An expression: a `Number` (one number per token) or a `Rule` (true or false per token).

    `==` is true if two expressions have the same text; it does not compare tokens.
    """

    is_rule: ClassVar[bool]
    reads_tokens: ClassVar[bool] = False
    """Whether it reads values of tokens itself, and not only through its parts."""
    from_text: ClassVar[Callable[[str], Expr]]  # `parsing` sets it
    _strength: ClassVar[int] = ATOM

    def __bool__(self) -> bool:
        raise TypeError(
            f"'{self}' is a rule over tokens, not True or False. Write (0 < prob) & (prob < 1) "
            "instead of 0 < prob < 1, and &, |, ~ instead of and, or, not."
        )

    @property
    def level(self) -> Level:
        """The finest level of the parts; constants have one value for the update."""
        return max((child.level for child in self.children()), default=Level.UPDATE)

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is built from."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        lists = [value if isinstance(value, tuple) else (value,) for value in values]
        parts = [part for items in lists for part in items]
        return tuple(part for part in parts if isinstance(part, Expr))

    def expanded(self) -> Expr:
        """The same expression with what names of `let` stand for in their places."""
        clone = copy.copy(self)
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = tuple(v.expanded() if isinstance(v, Expr) else v for v in value)
            value = value.expanded() if isinstance(value, Expr) else value
            object.__setattr__(clone, field.name, value)
        return clone

    @property
    def expanded_size(self) -> int:
        """The number of expressions in its text, if the names of `let` are written out."""
        return 1 + sum(child.expanded_size for child in self.children())

    def written_out(self) -> str:
        """Its text without the names of `let`; with them if it would be too long."""
        return str(self.expanded() if self.expanded_size <= LONGEST else self)

    def walk(self) -> tuple[Expr, ...]:
        """This expression and all expressions inside it, each once, from the outside."""
        nodes: dict[int, Expr] = {}
        left: list[Expr] = [self]
        while left:
            if id(node := left.pop()) not in nodes:
                nodes[id(node)] = node
                left += reversed(node.children())
        return tuple(nodes.values())

    def names(self) -> dict[str, Level]:
        """The columns that it names itself, each with what it takes it to have one value for."""
        return {}

    def own_columns(self) -> list[str]:
        """The TokenBatch columns that it reads itself."""
        return []

    def batch_columns(self) -> list[str]:
        """The TokenBatch columns that it and its parts read, besides advantages."""
        return [column for node in self.walk() for column in node.own_columns()]


@dataclass(frozen=True)
class Binary:
    """left operator right."""

    operator: str
    left: Any
    right: Any

    @property
    def _strength(self) -> int:
        return _BINDING[self.operator][0]

    def __str__(self) -> str:
        _, left, right = _BINDING[self.operator]
        return f"{inside(self.left, left)} {self.operator} {inside(self.right, right)}"


def inside(child: Expr, strength: int) -> str:
    """The text of a child, in parentheses if it binds more weakly than `strength`."""
    return str(child) if child._strength >= strength else f"({child})"


def call(node: Any, owner: Expr, method: str, *first: Any) -> str:
    """`owner.method(first, other=...)`, without arguments at their defaults."""
    return f"{inside(owner, ATOM)}.{method}({', '.join([*map(_shown, first), *settings(node)])})"


def settings(node: Any, required: bool = False) -> list[str]:
    """`name=value` of each field that is not at its default; of those without one if `required`."""
    return [
        f"{field.name}={_shown(value)}"
        for field in fields(node)
        if (value := getattr(node, field.name)) != field.default
        and (required or field.default is not MISSING)
    ]


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Expr) else repr(value)
