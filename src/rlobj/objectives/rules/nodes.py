"""The language of token rules: columns, comparisons, logic, arithmetic, cuts and `when`.

    advantage, prob, entropy, ...              a column, one number per token
    prob < 0.002                               a rule, true or false per token
    (advantage > 0) & (prob < 0.002)           &, | and ~ (in text also: and, or, not)
    entropy.top(0.2, within=advantage > 0)     the largest 20% of a population, over the update
    entropy.quantile(0.8)                      one number: the ceil(q·n)-th smallest value
    (covariance > 1).sample(5, seed=0)         a random subset of a rule's tokens
    when(surprisal.top(0.1), "W", 1)           a number per token; W is a controller's value

Text and Python are one language: `parse(str(e)) == e`. This module only builds and prints
expressions; `rlobj.objectives.frame` evaluates them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Any, Literal

from rlobj.base.errors import ConfigError, nearest
from rlobj.objectives.rules.checks import Rounding, check_cut, check_rounding, plain, share
from rlobj.objectives.rules.columns import COLUMNS
from rlobj.objectives.rules.operators import Expr, Number, Rule, as_number, as_rule
from rlobj.objectives.rules.printing import (
    ATOM,
    COMPARE,
    OR,
    STRENGTH,
    UNARY,
    call,
    infix,
    wrap,
)

__all__ = [
    "Arithmetic",
    "Column",
    "Compare",
    "Constant",
    "Controlled",
    "Cut",
    "Expr",
    "Logic",
    "Magnitude",
    "Negative",
    "Not",
    "Number",
    "Quantile",
    "Rule",
    "Sample",
    "When",
    "when",
]


@dataclass(frozen=True)
class Column(Number):
    """A column by name."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in COLUMNS:
            raise ConfigError(f"unknown column '{self.name}'.{nearest(self.name, COLUMNS)}")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Constant(Number):
    """A number."""

    value: float

    def __post_init__(self) -> None:
        if not abs(self.value) <= sys.float_info.max:
            raise ConfigError(f"a number in a rule must be finite, got {self.value}")
        object.__setattr__(self, "value", plain(self.value))

    @property
    def strength(self) -> int:  # type: ignore[override]
        return UNARY if math.copysign(1, self.value) < 0 else ATOM

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True)
class Controlled(Number):
    """A controller's present value, by the name under which the objective holds it."""

    name: str

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name[0].isupper()):
            advice = nearest(self.name, COLUMNS)
            raise ConfigError(
                f"unknown name '{self.name}'.{advice} A controller's name begins with a capital."
            )

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Arithmetic(Number):
    """left (+ − * /) right."""

    operator: str
    left: Number
    right: Number

    @property
    def strength(self) -> int:  # type: ignore[override]
        return STRENGTH[self.operator]

    def __str__(self) -> str:
        return infix(self)


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number
    strength = UNARY

    def __str__(self) -> str:
        # -(0.5) stays apart from the constant -0.5
        bare = isinstance(self.operand, Constant)
        return f"-({self.operand})" if bare else f"-{wrap(self.operand, UNARY)}"


@dataclass(frozen=True)
class Magnitude(Number):
    """|x|."""

    operand: Number

    def __str__(self) -> str:
        return f"abs({self.operand})"


@dataclass(frozen=True)
class Compare(Rule):
    """left (< <= > >=) right."""

    operator: str
    left: Number
    right: Number
    strength = COMPARE

    def __str__(self) -> str:
        return f"{wrap(self.left, OR)} {self.operator} {wrap(self.right, OR)}"


@dataclass(frozen=True)
class Logic(Rule):
    """left (& |) right."""

    operator: str
    left: Rule
    right: Rule

    @property
    def strength(self) -> int:  # type: ignore[override]
        return STRENGTH[self.operator]

    def __str__(self) -> str:
        return infix(self)


@dataclass(frozen=True)
class Not(Rule):
    """~rule."""

    operand: Rule
    strength = UNARY

    def __str__(self) -> str:
        return f"~{wrap(self.operand, UNARY)}"


@dataclass(frozen=True)
class Cut(Rule):
    """The largest or smallest tokens of a population; see `Number.top`."""

    side: Literal["top", "bottom"]
    value: Number
    fraction: float
    within: Rule | None = None
    round: Rounding = "ceil"
    at_least: int = 0
    none_below: int = 0

    def __post_init__(self) -> None:
        check_cut(f"{self.side}()", _ranked(self.value), self.value, self.fraction, self.round)
        object.__setattr__(self, "fraction", plain(self.fraction))
        for name in ("at_least", "none_below"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ConfigError(f"{self.side}({name}=...) must be a whole number of tokens >= 0")

    def __str__(self) -> str:
        return call(self, self.value, self.side, "fraction", skip=("side", "value"))

    def size(self, population: int) -> int:
        """k, the number of tokens to select of a population (before ties)."""
        k = min(max(share(self.fraction, population, self.round), self.at_least), population)
        return k if k >= self.none_below else 0


@dataclass(frozen=True)
class Quantile(Number):
    """The ceil(q·n)-th smallest value of a population; see `Number.quantile`."""

    value: Number
    q: float
    within: Rule | None = None

    def __post_init__(self) -> None:
        check_cut("quantile()", _ranked(self.value), self.value, self.q, "ceil")
        object.__setattr__(self, "q", plain(self.q))

    def __str__(self) -> str:
        return call(self, self.value, "quantile", "q", skip=("value",))


@dataclass(frozen=True)
class Sample(Rule):
    """A random subset of a rule's tokens; see `Rule.sample`."""

    rule: Rule
    amount: float
    seed: int = 0
    of: Literal["rule", "all"] = "rule"
    round: Rounding = "ceil"
    at_least: int = 0

    def __post_init__(self) -> None:
        whole = type(self.amount) is int and self.amount >= 0
        if not whole and not (isinstance(self.amount, float) and 0 <= self.amount <= 1):
            raise ConfigError(
                f"sample({self.amount!r}): expected a whole number of tokens or a float in [0, 1]"
            )
        object.__setattr__(self, "amount", plain(self.amount))
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"sample(seed={self.seed!r}): expected a whole number of 64 bits")
        if type(self.at_least) is not int or self.at_least < 0:
            raise ConfigError("sample(at_least=...) must be a whole number of tokens >= 0")
        if self.of not in ("rule", "all"):
            raise ConfigError(f"sample(of={self.of!r}): expected 'rule' or 'all'")
        check_rounding(self.round)

    def __str__(self) -> str:
        return call(self, self.rule, "sample", "amount", skip=("rule",))

    def size(self, rule: int, population: int) -> int:
        """The number of tokens to draw from `rule` tokens of `population`."""
        if type(self.amount) is int:
            k = self.amount
        else:
            k = share(self.amount, rule if self.of == "rule" else population, self.round)
        return min(max(k, self.at_least), rule)


@dataclass(frozen=True)
class When(Number):
    """`then` where the rule holds, `otherwise` elsewhere."""

    rule: Rule
    then: Number
    otherwise: Number

    def __str__(self) -> str:
        return f"when({self.rule}, {self.then}, {self.otherwise})"


def when(rule: Rule | str, then: Any, otherwise: Any) -> Number:
    """A number per token: `then` where the rule holds, `otherwise` elsewhere.

    Numbers may be given as numbers, expressions or text; a name in capitals is a controller.

    Example:
        >>> from rlobj import surprisal
        >>> str(when(surprisal.top(0.1), "W", 1))
        'when(surprisal.top(0.1), W, 1)'
    """
    return When(as_rule(rule, "when"), as_number(then), as_number(otherwise))


def _ranked(value: Number) -> bool:
    """Does the number differ from token to token?"""
    return any(isinstance(node, Column) for node in value.walk())
