"""The language of token rules: columns, comparisons, logic, arithmetic, cuts and `when`.

    advantage, prob, entropy, ...              a column, one number per token
    prob < 0.002                               a rule, true or false per token
    (advantage > 0) & (prob < 0.002)           &, | and ~ (in text also: and, or, not)
    entropy.top(0.2, within=advantage > 0)     the largest 20% of a population, over the update
    entropy.quantile(0.8)                      one number: the ceil(q·n)-th smallest value
    (covariance > 1).sample(5, seed=0)         a random subset of a rule's tokens
    when(surprisal.top(0.1), "W", 1)           a number per token; W is a controller's value

Text and Python are one language: `parse(str(e)) == e`. This module only builds and prints
expressions; `rlobj.frame` evaluates them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal

from rlobj.errors import ConfigError, nearest

__all__ = [
    "COLUMNS",
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

COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    # name: (meaning, TokenBatch columns it reads)
    "prob": ("π, probability of the token under the policy now", ("logprobs",)),
    "logprob": ("l = log π, nats", ("logprobs",)),
    "surprisal": ("−log π, nats", ("logprobs",)),
    "entropy": ("H of the policy now at the token's position, nats", ("entropy",)),
    "old_prob": ("π_old, probability under the rollout's policy", ("old_logprobs",)),
    "old_logprob": ("l0 = log π_old, nats", ("old_logprobs",)),
    "old_surprisal": ("−log π_old, nats", ("old_logprobs",)),
    "old_entropy": ("H of the rollout's policy, nats", ("old_entropy",)),
    "advantage": ("A, the token's advantage", ()),
    "reward": ("R, the response's reward", ("rewards",)),
    "ratio": ("r = π / π_old", ("logprobs", "old_logprobs")),
    "length": ("trained tokens in the response", ()),
    "position": ("index in the response, from 0", ()),
    "covariance": ("(A − mean A)·(l − mean l), means over the update's tokens", ("logprobs",)),
    "proxy_gap": ("l_proxy − l, nats", ("proxy_logprobs", "logprobs")),
    "sampler_gap": ("l0 − l_sampler, nats", ("old_logprobs", "sampler_logprobs")),
    "collision": ("Σ π² over the vocabulary", ("collision",)),
    "gradient_norm": ("|A|·sqrt(1 − 2π + Σ π²), of the logits", ("logprobs", "collision")),
}

# Binding strength, as in Python; a printed child weaker than its place gets parentheses.
_COMPARE, _OR, _AND, _SUM, _PRODUCT, _UNARY, _ATOM = range(7)
_STRENGTH = {"|": _OR, "&": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


class Expr:
    """A node: `Number` (one number per token) or `Rule` (true or false per token).

    `==` asks whether two expressions are the same text; it never compares tokens.
    """

    strength = _ATOM

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
        return Arithmetic("+", self, _number(other))

    def __radd__(self, other: Any) -> Number:
        return Arithmetic("+", _number(other), self)

    def __sub__(self, other: Any) -> Number:
        return Arithmetic("-", self, _number(other))

    def __rsub__(self, other: Any) -> Number:
        return Arithmetic("-", _number(other), self)

    def __mul__(self, other: Any) -> Number:
        return Arithmetic("*", self, _number(other))

    def __rmul__(self, other: Any) -> Number:
        return Arithmetic("*", _number(other), self)

    def __truediv__(self, other: Any) -> Number:
        return Arithmetic("/", self, _number(other))

    def __rtruediv__(self, other: Any) -> Number:
        return Arithmetic("/", _number(other), self)

    def __neg__(self) -> Number:
        return Negative(self)

    def __abs__(self) -> Number:
        return Magnitude(self)

    def __lt__(self, other: Any) -> Rule:
        return _compare("<", self, _number(other))

    def __le__(self, other: Any) -> Rule:
        return _compare("<=", self, _number(other))

    def __gt__(self, other: Any) -> Rule:
        return _compare(">", self, _number(other))

    def __ge__(self, other: Any) -> Rule:
        return _compare(">=", self, _number(other))

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
        return Cut("top", self, fraction, _rule_or_none(within), round, at_least, none_below)

    def bottom(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
    ) -> Rule:
        """The k smallest; otherwise as `top`."""
        return Cut("bottom", self, fraction, _rule_or_none(within), round, at_least, none_below)

    def quantile(self, q: float, within: Rule | str | None = None) -> Number:
        """The ceil(q·n)-th smallest value, so that x <= x.quantile(q) is x.bottom(q)."""
        return Quantile(self, q, _rule_or_none(within))


class Rule(Expr):
    """True or false per token."""

    def __and__(self, other: Any) -> Rule:
        return Logic("&", self, _rule(other, "&"))

    def __or__(self, other: Any) -> Rule:
        return Logic("|", self, _rule(other, "|"))

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
        """A random subset of the rule's tokens, the same however the update is split.

        Args:
            size: an integer is a number of tokens, a float in [0, 1] a fraction.
            seed: tokens are ranked by hash(seed, update, response id, position).
            of: what a fraction is of: the rule's tokens, or all tokens of the update.
            round: "ceil" or "floor" of fraction·n.
            at_least: the number of tokens is raised to this, as far as the rule has them.
        """
        return Sample(self, size, seed, of, round, at_least)


Rounding = Literal["ceil", "floor"]


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
        if not math.isfinite(self.value):
            raise ConfigError(f"a number in a rule must be finite, got {self.value}")

    @property
    def strength(self) -> int:  # type: ignore[override]
        return _UNARY if math.copysign(1, self.value) < 0 else _ATOM

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
        return _STRENGTH[self.operator]

    def __str__(self) -> str:
        return _infix(self)


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number
    strength = _UNARY

    def __str__(self) -> str:
        # -(0.5) stays apart from the constant -0.5
        bare = isinstance(self.operand, Constant)
        return f"-({self.operand})" if bare else f"-{_wrap(self.operand, _UNARY)}"


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
    strength = _COMPARE

    def __str__(self) -> str:
        return f"{_wrap(self.left, _OR)} {self.operator} {_wrap(self.right, _OR)}"


@dataclass(frozen=True)
class Logic(Rule):
    """left (& |) right."""

    operator: str
    left: Rule
    right: Rule

    @property
    def strength(self) -> int:  # type: ignore[override]
        return _STRENGTH[self.operator]

    def __str__(self) -> str:
        return _infix(self)


@dataclass(frozen=True)
class Not(Rule):
    """~rule."""

    operand: Rule
    strength = _UNARY

    def __str__(self) -> str:
        return f"~{_wrap(self.operand, _UNARY)}"


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
        _check_cut(f"{self.side}()", self.value, self.fraction, self.round)
        for name in ("at_least", "none_below"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 0:
                raise ConfigError(f"{self.side}({name}=...) must be a whole number of tokens >= 0")

    def __str__(self) -> str:
        return _call(self, self.value, self.side, "fraction", skip=("side", "value"))

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
        _check_cut("quantile()", self.value, self.q, "ceil")

    def __str__(self) -> str:
        return _call(self, self.value, "quantile", "q", skip=("value",))


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
        if self.of not in ("rule", "all"):
            raise ConfigError(f"sample(of={self.of!r}): expected 'rule' or 'all'")
        _check_rounding(self.round)

    def __str__(self) -> str:
        return _call(self, self.rule, "sample", "amount", skip=("rule",))

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
    return When(_rule(rule, "when"), _number(then), _number(otherwise))


def share(fraction: float, n: int, rounding: Rounding) -> int:
    """round(fraction·n), with the fraction read as the decimal that was written."""
    exact = Fraction(repr(float(fraction))) * n
    return math.ceil(exact) if rounding == "ceil" else math.floor(exact)


def _number(value: Any) -> Number:
    """A Number from an expression, a number or text."""
    if isinstance(value, str):
        from rlobj.expressions.parsing import parse

        value = parse(value)
    if isinstance(value, Number):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = "a rule" if isinstance(value, Rule) else f"{type(value).__name__}"
        raise ConfigError(f"expected a number, got {kind} '{value}'")
    return Constant(value)


def _rule(value: Any, where: str) -> Rule:
    if isinstance(value, str):
        from rlobj.expressions.parsing import parse

        value = parse(value)
    if isinstance(value, Rule):
        return value
    raise ConfigError(
        f"{where} takes a rule such as prob < 0.002, got '{value}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _rule_or_none(value: Any) -> Rule | None:
    return None if value is None else _rule(value, "within")


def _mixed(operator: str, left: Any, right: Any) -> str:
    return (
        f"'{operator}' joins rules, got the number '{left}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _compare(operator: str, left: Number, right: Number) -> Rule:
    """Constants go right, so that 0 < prob in text is what Python makes of it."""
    if isinstance(left, Constant) and not isinstance(right, Constant):
        return Compare(_FLIPPED[operator], right, left)
    return Compare(operator, left, right)


def _check_cut(name: str, value: Number, fraction: float, rounding: str) -> None:
    if not any(isinstance(node, Column) for node in value.walk()):
        raise ConfigError(f"{name} needs a column to rank by, got '{value}'")
    number = isinstance(fraction, (int, float)) and not isinstance(fraction, bool)
    if not number or not 0 <= fraction <= 1:
        raise ConfigError(f"{name}: the fraction must lie in [0, 1], got {fraction!r}")
    _check_rounding(rounding)


def _check_rounding(rounding: str) -> None:
    if rounding not in ("ceil", "floor"):
        raise ConfigError(f"round={rounding!r}: expected 'ceil' or 'floor'")


def _wrap(child: Expr, place: int) -> str:
    return str(child) if child.strength >= place else f"({child})"


def _infix(node: Arithmetic | Logic) -> str:
    left, right = _wrap(node.left, node.strength), _wrap(node.right, node.strength + 1)
    return f"{left} {node.operator} {right}"


def _call(node: Any, owner: Expr, method: str, first: str, skip: tuple[str, ...]) -> str:
    """owner.method(first, other=...): arguments at their defaults are not printed."""
    arguments = [repr(getattr(node, first))]
    for field in fields(node):
        value = getattr(node, field.name)
        if field.name == first or field.name in skip or value == field.default:
            continue
        arguments.append(f"{field.name}={value if isinstance(value, Expr) else repr(value)}")
    return f"{_wrap(owner, _ATOM)}.{method}({', '.join(arguments)})"
