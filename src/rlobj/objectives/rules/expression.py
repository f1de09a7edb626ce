"""Expr, the base of all expressions: its level, its parts, and how its text is put together.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`.

Checks of the arguments of expressions, and how a fraction becomes a number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Literal

from rlobj.base.errors import ConfigError

Rounding = Literal["ceil", "floor", "linear"]


def rounded_share(fraction: float, n: int, rounding: Rounding) -> int:
    """round(fraction·n), where a product that is whole but for rounding is whole: 0.07·100 is 7.

    "linear" is floor(fraction·(n − 1)) + 1: the number of values up to the quantile if it is
    interpolated between two values, as `torch.quantile` does.
    """
    linear = rounding == "linear"
    product = fraction * (n - linear)
    whole = round(product)
    exact = whole if math.isclose(product, whole, rel_tol=1e-15) else product
    return math.ceil(exact) if rounding == "ceil" else math.floor(exact) + linear


def plain(value: float) -> float:
    """The number as a Python int or float: unlike numpy's, its repr is the number alone."""
    return int(value) if isinstance(value, int) and abs(value) <= 2**53 else float(value)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{what}={value!r}: expected one of {', '.join(choices)}")


def check_fraction(name: str, value: object, above: float = -1.0) -> None:
    """Refuse what is not a number in [0, 1], or in (0, 1] if `above` is 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and max(above, 0) <= value <= 1 and value != above):  # type: ignore[operator]
        interval = "(0, 1]" if above == 0 else "[0, 1]"
        raise ConfigError(f"{name} must lie in {interval}, got {value!r}")


def check_size(name: str, tokens: object) -> None:
    if type(tokens) is not int or tokens < 0:
        raise ConfigError(f"{name} must be a whole number of tokens >= 0")


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
        parts = [part for x in values for part in (x if isinstance(x, tuple) else (x,))]
        return tuple(part for part in parts if isinstance(part, Expr))

    def walk(self) -> tuple[Expr, ...]:
        """This expression and all expressions inside it."""
        return (self, *(node for child in self.children() for node in child.walk()))

    def batch_columns(self) -> list[str]:
        """The TokenBatch columns that it reads, besides advantages."""
        return [column for child in self.children() for column in child.batch_columns()]


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
