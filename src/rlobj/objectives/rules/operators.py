"""What Python's operators and methods build: the grammar of numbers and rules."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import rlobj.objectives.rules.nodes as nodes  # subclasses of what is here; read in methods only
from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.checks import Rounding
from rlobj.objectives.rules.printing import ATOM

__all__ = ["Expr", "Number", "Rule", "as_number", "as_rule"]

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Expr:
    """A node: `Number` (one number per token) or `Rule` (true or false per token).

    `==` asks whether two expressions are the same text; it never compares tokens.
    """

    strength = ATOM

    def __bool__(self) -> bool:
        raise TypeError(
            f"'{self}' is a rule over tokens, not True or False. Write (0 < prob) & (prob < 1) "
            "instead of 0 < prob < 1, and &, |, ~ instead of and, or, not."
        )

    def children(self) -> tuple[Expr, ...]:
        """The expressions this one is built from."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Expr))

    def walk(self) -> tuple[Expr, ...]:
        """This node and all below it."""
        return (self, *(node for child in self.children() for node in child.walk()))


class Number(Expr):
    """One number per token (or one for all)."""

    def __add__(self, other: Any) -> Number:
        return nodes.Arithmetic("+", self, as_number(other))

    def __radd__(self, other: Any) -> Number:
        return nodes.Arithmetic("+", as_number(other), self)

    def __sub__(self, other: Any) -> Number:
        return nodes.Arithmetic("-", self, as_number(other))

    def __rsub__(self, other: Any) -> Number:
        return nodes.Arithmetic("-", as_number(other), self)

    def __mul__(self, other: Any) -> Number:
        return nodes.Arithmetic("*", self, as_number(other))

    def __rmul__(self, other: Any) -> Number:
        return nodes.Arithmetic("*", as_number(other), self)

    def __truediv__(self, other: Any) -> Number:
        return nodes.Arithmetic("/", self, as_number(other))

    def __rtruediv__(self, other: Any) -> Number:
        return nodes.Arithmetic("/", as_number(other), self)

    def __neg__(self) -> Number:
        return nodes.Negative(self)

    def __abs__(self) -> Number:
        return nodes.Magnitude(self)

    def __lt__(self, other: Any) -> Rule:
        return _compare("<", self, as_number(other))

    def __le__(self, other: Any) -> Rule:
        return _compare("<=", self, as_number(other))

    def __gt__(self, other: Any) -> Rule:
        return _compare(">", self, as_number(other))

    def __ge__(self, other: Any) -> Rule:
        return _compare(">=", self, as_number(other))

    def __and__(self, other: Any) -> Rule:
        raise ConfigError(_mixed("&", self, other))

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
            none_below: nothing is selected where k is below this.
        """
        population = _rule_or_none(within)
        return nodes.Cut("top", self, fraction, population, round, at_least, none_below)

    def bottom(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
    ) -> Rule:
        """The k smallest; otherwise as `top`."""
        return nodes.Cut(
            "bottom", self, fraction, _rule_or_none(within), round, at_least, none_below
        )

    def quantile(self, q: float, within: Rule | str | None = None) -> Number:
        """The ceil(q·n)-th smallest value, so that x <= x.quantile(q) is x.bottom(q)."""
        return nodes.Quantile(self, q, _rule_or_none(within))


class Rule(Expr):
    """True or false per token."""

    def __and__(self, other: Any) -> Rule:
        return nodes.Logic("&", self, as_rule(other, "&"))

    def __or__(self, other: Any) -> Rule:
        return nodes.Logic("|", self, as_rule(other, "|"))

    def __invert__(self) -> Rule:
        return nodes.Not(self)

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
        """A random subset of the rule's tokens, the same however the update is split.

        Args:
            size: an integer is a number of tokens, a float in [0, 1] a fraction.
            seed: tokens are ranked by hash(seed, update, response id, position).
            of: what a fraction is of: the rule's tokens, or all tokens of the update.
            round: "ceil" or "floor" of fraction·n.
            at_least: the number of tokens is raised to this, as far as the rule has them.
        """
        return nodes.Sample(self, size, seed, of, round, at_least)


def as_number(value: Any) -> Number:
    """A Number from an expression, a number or text.

    Raises:
        ConfigError: something else.
    """
    if isinstance(value, str):
        from rlobj.objectives.rules.parsing import parse

        value = parse(value)
    if isinstance(value, Number):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = "a rule" if isinstance(value, Rule) else f"{type(value).__name__}"
        raise ConfigError(f"expected a number, got {kind} '{value}'")
    return nodes.Constant(value)


def as_rule(value: Any, where: str) -> Rule:
    """A Rule from an expression or text; `where` names the place in the error."""
    if isinstance(value, str):
        from rlobj.objectives.rules.parsing import parse

        value = parse(value)
    if isinstance(value, Rule):
        return value
    raise ConfigError(
        f"{where} takes a rule such as prob < 0.002, got '{value}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _rule_or_none(value: Any) -> Rule | None:
    return None if value is None else as_rule(value, "within")


def _mixed(operator: str, left: Any, right: Any) -> str:
    return (
        f"'{operator}' joins rules, got the number '{left}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _compare(operator: str, left: Number, right: Number) -> Rule:
    """Constants go right, so that 0 < prob in text is what Python makes of it."""
    if isinstance(left, nodes.Constant) and not isinstance(right, nodes.Constant):
        return nodes.Compare(_FLIPPED[operator], right, left)
    return nodes.Compare(operator, left, right)
