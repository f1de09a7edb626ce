"""Expr, the base of all expressions: its level, its parts, and how its text is put together.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`.

Checks of the arguments of expressions, and how a fraction becomes a number of tokens.

Populations of tokens, turns or responses, and the fields of statistics of a population.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar, Literal, get_args

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


By = Literal["update", "group", "position", "response", "turn", "group_turn"]
Path = Literal["response", "turn"]
CUT_BY = ("update", "group", "response", "turn", "group_turn")
Unit = Literal["token", "response", "turn"]
"""What a cut or a quantile ranks."""
FINEST = {
    "update": Level.UPDATE,
    "position": Level.TOKEN,
    "turn": Level.TURN,
    "group_turn": Level.TURN,
}
"""What a population has its values for; each response has one by group and by response."""


def level_by(by: str) -> Level:
    """What an aggregate has one value for, by its populations."""
    return FINEST.get(by, Level.RESPONSE)


class Populated:
    """What reads populations."""

    by: Any

    def batch_columns(self) -> list[str]:
        by_turn = FINEST.get(self.by) == Level.TURN
        return [*(["turn"] if by_turn else []), *super().batch_columns()]  # type: ignore[misc]


class Ranking(Populated):
    """What cuts, quantiles and samples have in common: they rank tokens, turns or responses."""

    of: Any

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens, turns or responses."""
        return {"response": Level.RESPONSE, "turn": Level.TURN}.get(self.of, Level.TOKEN)

    @property
    def level(self) -> Level:
        return self.counted


@dataclass(frozen=True)
class OfPopulation(Populated):
    """A statistic of a population: the fields of aggregates that are numbers and of those that are
    rules.

    Attributes:
        of: the Number or Rule.
        statistic: the method's name.
        by: the populations.
        within: the Rule whose members count; None = all.
    """

    of: Any
    statistic: str
    by: By = "update"
    within: Any = None

    def __post_init__(self) -> None:
        check_choice(f"{self.statistic}(): by", self.by, get_args(By))
        if self.of.level == Level.UPDATE:
            raise ConfigError(
                f"{self.statistic}() needs a column, and '{self.of}' is the same for the whole "
                "update"
            )

    def __str__(self) -> str:
        return call(self, self.of, self.statistic)

    @property
    def level(self) -> Level:
        return level_by(self.by)

    @property
    def counted(self) -> Level:
        """The unit of the population: the finer one of the number's and of the population's."""
        return max(self.of.level, level_by(self.by), Level.RESPONSE)


@dataclass(frozen=True)
class Along(Populated):
    """A sum along the response or the turn: the fields of scans.

    Attributes:
        value: the Number.
        side: "prefix" or "suffix".
        decay: in (0, 1].
        by: what the sum starts again at.
    """

    value: Any
    side: Literal["prefix", "suffix"]
    decay: float = 1.0
    by: Path = "response"

    def __post_init__(self) -> None:
        check_choice(f"{self.side}_sum(): by", self.by, get_args(Path))
        if self.by == "turn" and self.level == Level.TURN:
            raise ConfigError(
                f"{self.side}_sum(by='turn') adds up the tokens of a turn, and '{self.value}' has "
                "one value per turn; leave out by"
            )
        check_fraction(f"{self.side}_sum(): the decay", self.decay, above=0)
        object.__setattr__(self, "decay", plain(self.decay))

    def __str__(self) -> str:
        return call(self, self.value, f"{self.side}_sum")

    @property
    def level(self) -> Level:
        """What it goes along: turns if the number is one of turns, else tokens."""
        return Level.TURN if self.value.level == Level.TURN else Level.TOKEN


def check_amount(amount: Any) -> Any:
    """The size of a sample: a plain number, or an expression with one value for the update."""
    given = isinstance(amount, Expr) and not amount.is_rule and amount.level == Level.UPDATE
    whole = type(amount) is int and amount >= 0
    if not given and not whole and not (isinstance(amount, float) and 0 <= amount <= 1):
        raise ConfigError(
            f"sample({amount}): expected a whole number of tokens, a float in [0, 1], or an "
            "expression with one value for the update, such as (prob < 0.002).count()"
        )
    return amount if isinstance(amount, Expr) else plain(amount)
