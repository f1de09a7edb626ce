"""Expressions over tokens: columns, comparisons, logic, arithmetic, cuts and `when`.

    advantage, prob, entropy, ...              a column, one number per token
    prob < 0.002                               a rule, true or false per token
    (advantage > 0) & (prob < 0.002)           &, | and ~ (in text also: and, or, not)
    entropy.top(0.2, within=advantage > 0)     the largest 20% of a population, over the update
    entropy.quantile(0.8)                      one number: the ceil(q·n)-th smallest value
    (covariance > 1).sample(5, seed=0)         a random subset of a rule's tokens
    when(surprisal.top(0.1), "W", 1)           a number per token; W is a controller's value

The same rule is written the same way in text and in Python: `parse(str(e)) == e`. This module only
builds expressions; `rlobj.objectives.frame` evaluates them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.checks import (
    Rounding,
    check_column,
    check_controller,
    check_cut,
    check_sample,
    check_size,
    plain,
    share,
)
from rlobj.objectives.rules.expression import Expr
from rlobj.objectives.rules.parsing import Language, Parser

__all__ = [
    "Arithmetic",
    "Column",
    "Compare",
    "Constant",
    "Controlled",
    "Cut",
    "Logic",
    "Magnitude",
    "Negative",
    "Not",
    "Number",
    "Quantile",
    "Rule",
    "Sample",
    "When",
    "parse",
    "when",
]

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _arithmetic(operator: str) -> tuple[Callable[[Any, Any], Number], Callable[[Any, Any], Number]]:
    """`number operator other` and `other operator number`."""
    return (
        lambda self, other: Arithmetic(operator, self, as_number(other)),
        lambda self, other: Arithmetic(operator, as_number(other), self),
    )


def _comparison(operator: str) -> Callable[[Any, Any], Rule]:
    """`number operator other`, with constants on the right: 0 < prob builds prob > 0."""

    def compare(self: Number, other: Any) -> Rule:
        right = as_number(other)
        if isinstance(self, Constant) and not isinstance(right, Constant):
            return Compare(_FLIPPED[operator], right, self)
        return Compare(operator, self, right)

    return compare


class Number(Expr):
    """One number per token (or one for all)."""

    __add__, __radd__ = _arithmetic("+")
    __sub__, __rsub__ = _arithmetic("-")
    __mul__, __rmul__ = _arithmetic("*")
    __truediv__, __rtruediv__ = _arithmetic("/")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))

    def __neg__(self) -> Number:
        return Negative(self)

    def __abs__(self) -> Number:
        return Magnitude(self)

    def __and__(self, other: Any) -> Rule:
        raise ConfigError(
            f"'&' joins rules, got the number '{self}'. "
            "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
        )

    __rand__ = __or__ = __ror__ = __and__

    def __invert__(self) -> Rule:
        raise ConfigError(f"~ takes a rule, got the number '{self}'; compare it first")

    def top(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
    ) -> Rule:
        """The k = round(fraction·n) largest of the population's n tokens; ties are all kept.

        Args:
            fraction: share of the population, in [0, 1].
            within: the population; None = all tokens of the update.
            round: "ceil" or "floor" of fraction·n (exact: 0.07·100 is 7).
            at_least: k is raised to this (and lowered to n).
            none_below: nothing is selected if k is below this.
        """
        population = _rule_or_none(within)
        return Cut("top", self, fraction, population, round, at_least, none_below)

    def bottom(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
    ) -> Rule:
        """The k smallest of the population's n tokens; the arguments are those of `top`."""
        return Cut("bottom", self, fraction, _rule_or_none(within), round, at_least, none_below)

    def quantile(self, q: float, within: Rule | str | None = None) -> Number:
        """The ceil(q·n)-th smallest value: `x <= x.quantile(q)` is the same as `x.bottom(q)`."""
        return Quantile(self, q, _rule_or_none(within))


class Rule(Expr):
    """True or false per token."""

    def __and__(self, other: Any) -> Rule:
        return Logic("&", self, as_rule(other, "&"))

    def __or__(self, other: Any) -> Rule:
        return Logic("|", self, as_rule(other, "|"))

    def __invert__(self) -> Rule:
        return Not(self)

    def __lt__(self, other: Any) -> Rule:
        raise ConfigError(
            f"'{self}' is a rule and cannot be compared with '{other}'. Comparisons do not chain: "
            "write (0 < prob) & (prob < 1)"
        )

    __le__ = __gt__ = __ge__ = __lt__

    def __add__(self, other: Any) -> Number:
        raise ConfigError(
            f"'{self}' is a rule, not a number; use when({self}, 1, 0) to do arithmetic with it"
        )

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __add__

    def sample(
        self,
        size: float,
        seed: int = 0,
        of: Literal["rule", "all"] = "rule",
        round: Rounding = "ceil",
        at_least: int = 0,
    ) -> Rule:
        """A random subset of the rule's tokens, the same for any split of the update.

        Args:
            size: a number of tokens (int), or a fraction in [0, 1] (float).
            seed: tokens are ranked by hash(seed, update, response id, position).
            of: the fraction is of the rule's tokens, or of all tokens of the update.
            round: "ceil" or "floor" of fraction·n.
            at_least: the number of tokens is raised to this, if the rule has that many.
        """
        return Sample(self, size, seed, of, round, at_least)


@dataclass(frozen=True)
class Column(Number):
    """A column by name."""

    name: str

    def __post_init__(self) -> None:
        check_column(self.name)


@dataclass(frozen=True)
class Constant(Number):
    """A number."""

    value: float

    def __post_init__(self) -> None:
        if not abs(self.value) <= sys.float_info.max:
            raise ConfigError(f"a number in a rule must be finite, got {self.value}")
        object.__setattr__(self, "value", plain(self.value))


@dataclass(frozen=True)
class Controlled(Number):
    """The current value of a controller, by name."""

    name: str

    def __post_init__(self) -> None:
        check_controller(self.name)


@dataclass(frozen=True)
class Arithmetic(Number):
    """left (+ − * /) right."""

    operator: str
    left: Number
    right: Number


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number


@dataclass(frozen=True)
class Magnitude(Number):
    """|x|."""

    operand: Number


@dataclass(frozen=True)
class Compare(Rule):
    """left (< <= > >=) right."""

    operator: str
    left: Number
    right: Number


@dataclass(frozen=True)
class Logic(Rule):
    """left (& |) right."""

    operator: str
    left: Rule
    right: Rule


@dataclass(frozen=True)
class Not(Rule):
    """~rule."""

    operand: Rule


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
        check_size(f"{self.side}(at_least=...)", self.at_least)
        check_size(f"{self.side}(none_below=...)", self.none_below)

    def size(self, population: int) -> int:
        """k, the number of tokens to select from a population, without ties."""
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
        check_sample(self.amount, self.seed, self.of, self.round, self.at_least)
        object.__setattr__(self, "amount", plain(self.amount))

    def size(self, rule: int, population: int) -> int:
        """The number of tokens to select, if `rule` of `population` tokens are the rule's."""
        if type(self.amount) is int:
            k = self.amount
        else:
            k = share(self.amount, rule if self.of == "rule" else population, self.round)
        return min(max(k, self.at_least), rule)


@dataclass(frozen=True)
class When(Number):
    """`then` on tokens of the rule, `otherwise` on all others."""

    rule: Rule
    then: Number
    otherwise: Number


def when(rule: Rule | str, then: Any, otherwise: Any) -> Number:
    """A number per token: `then` on tokens of the rule, `otherwise` on all others.

    `then` and `otherwise` are numbers, expressions or text; the text "W" is the controller W.

    Example:
        >>> from rlobj import surprisal
        >>> str(when(surprisal.top(0.1), "W", 1))
        'when(surprisal.top(0.1), W, 1)'
    """
    return When(as_rule(rule, "when"), as_number(then), as_number(otherwise))


def _ranked(value: Number) -> bool:
    """Whether the number depends on the token."""
    return any(isinstance(node, Column) for node in value.walk())


def parse(text: str) -> Expr:
    """The expression that a text describes.

    Raises:
        ConfigError: the text is not a rule; the message has a caret and the nearest name.

    Example:
        >>> parse("advantage > 0 and not prob >= 0.002")
        Logic(operator='&', ...)
    """
    return Parser(text, _LANGUAGE).expression()


def as_number(value: Any) -> Number:
    """A Number from an expression, a number or text.

    Raises:
        ConfigError: something else.
    """
    value = parse(value) if isinstance(value, str) else value
    if isinstance(value, Number):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = "a rule" if isinstance(value, Rule) else f"{type(value).__name__}"
        raise ConfigError(f"expected a number, got {kind} '{value}'")
    return Constant(value)


def as_rule(value: Any, where: str) -> Rule:
    """A Rule from an expression or text; `where` is what takes it, for the error message."""
    value = parse(value) if isinstance(value, str) else value
    if isinstance(value, Rule):
        return value
    raise ConfigError(
        f"{where} takes a rule such as prob < 0.002, got '{value}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _rule_or_none(value: Any) -> Rule | None:
    return None if value is None else as_rule(value, "within")


_LANGUAGE = Language(Number, Rule, Column, Controlled, Constant, when)
