"""Number and Rule: the operators and methods that build expressions.

    prob < 0.002                               a rule, true or false per token
    (advantage > 0) & (prob < 0.002)           &, | and ~ (in text also: and, or, not)
    0.2 + 0.1 * entropy ** 2                   + - * / **
    entropy.top(0.2, within=advantage > 0)     the largest 20% of a population
    entropy.quantile(0.8)                      one number: the ceil(q·n)-th smallest value
    length.rank(by="group")                    0 for a group's shortest response, 1 for its longest
    (covariance > 1).sample(5, seed=0)         a random subset of a rule's tokens
    reward.mean(by="group")                    one number for each group: the pass rate
    (prob < 0.002).any(by="response")          true on all tokens of a response with such a token
    (logprob - old_logprob).suffix_sum()       the sum from the token to the response's end
    exp(x), log(x), sqrt(x), sign(x), abs(x), minimum(x, y), maximum(x, y), clip(x, low, high)
    when(surprisal.top(0.1), "W", 1)           a number per token; W is a controller's value

Each population is that of the update, of a group, of a position in a group's responses or of a
response: by="update", "group", "position" or "response". A token on which a number is undefined
belongs to no population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.checks import Rounding
from rlobj.objectives.rules.columns import declared
from rlobj.objectives.rules.expression import Expr, make
from rlobj.objectives.rules.parsing import parse

__all__ = ["clip", "column", "exp", "log", "maximum", "minimum", "sign", "sqrt", "when"]

By = Literal["update", "group", "position", "response"]

_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _arithmetic(operator: str) -> tuple[Callable[[Any, Any], Number], Callable[[Any, Any], Number]]:
    """`number operator other` and `other operator number`."""
    return (
        lambda self, other: make("Arithmetic", operator, self, as_number(other)),
        lambda self, other: make("Arithmetic", operator, as_number(other), self),
    )


def _comparison(operator: str) -> Callable[[Any, Any], Rule]:
    """`number operator other`, with constants on the right: 0 < prob builds prob > 0."""

    def compare(self: Number, other: Any) -> Rule:
        right = as_number(other)
        if type(self).__name__ == "Constant" != type(right).__name__:
            return make("Compare", _FLIPPED[operator], right, self)
        return make("Compare", operator, self, right)

    return compare


class Number(Expr):
    """One number per token, per response or for the update."""

    is_rule: ClassVar[bool] = False

    __add__, __radd__ = _arithmetic("+")
    __sub__, __rsub__ = _arithmetic("-")
    __mul__, __rmul__ = _arithmetic("*")
    __truediv__, __rtruediv__ = _arithmetic("/")
    __pow__, __rpow__ = _arithmetic("**")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))

    def __neg__(self) -> Number:
        return make("Negative", self)

    def __abs__(self) -> Number:
        return make("Function", "abs", (self,))

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
        by: By = "update",
    ) -> Rule:
        """The k = round(fraction·n) largest of the population's n tokens; ties are all kept.

        Args:
            fraction: share of the population, in [0, 1].
            within: the population; None = all tokens.
            round: "ceil" or "floor" of fraction·n (exact: 0.07·100 is 7); "linear":
                floor(fraction·(n − 1)) + 1, as many as lie up to `torch.quantile`.
            at_least: k is raised to this (and lowered to n).
            none_below: nothing is selected if k is below this.
            by: one population for the update, or one for each group or response.
        """
        population = _rule_or_none(within)
        return make("Cut", "top", self, fraction, population, round, at_least, none_below, by)

    def bottom(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
        by: By = "update",
    ) -> Rule:
        """The k smallest of the population's n tokens; the arguments are those of `top`."""
        population = _rule_or_none(within)
        return make("Cut", "bottom", self, fraction, population, round, at_least, none_below, by)

    def quantile(self, q: float, within: Rule | str | None = None, by: By = "update") -> Number:
        """The ceil(q·n)-th smallest value: `x <= x.quantile(q)` is the same as `x.bottom(q)`."""
        return make("Quantile", self, q, _rule_or_none(within), by)

    def rank(self, within: Rule | str | None = None, by: By = "update") -> Number:
        """(rank − 1)/(n − 1) among the population's n values: 0 = smallest, 1 = largest.

        Equal values have the mean of their ranks, and the only value of a population has 0.5. The
        population is one of responses if the number is theirs, as for `mean`.

        Args:
            within: the population; all others are undefined. None = all.
            by: one population for the update, or one for each group, position or response.
        """
        return make("Rank", self, "rank", by, _rule_or_none(within))

    def mean(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The mean over a population's tokens, or over its responses if the number is theirs.

        Args:
            by: one population for the update, or one for each group, position or response.
            within: the population; a response belongs to it if the rule holds for the response, or
                for one of its tokens if the rule is one of tokens.
        """
        return make("Aggregate", self, "mean", by, _rule_or_none(within))

    def sum(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The sum over a population, 0 if it is empty; the arguments are those of `mean`."""
        return make("Aggregate", self, "sum", by, _rule_or_none(within))

    def min(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The smallest value of a population; the arguments are those of `mean`."""
        return make("Aggregate", self, "min", by, _rule_or_none(within))

    def max(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The largest value of a population; the arguments are those of `mean`."""
        return make("Aggregate", self, "max", by, _rule_or_none(within))

    def prefix_sum(self, decay: float = 1.0) -> Number:
        """y_t = x_t + decay·y_{t−1} from the start of the response, decay in (0, 1]."""
        return make("Scan", self, "prefix", decay)

    def suffix_sum(self, decay: float = 1.0) -> Number:
        """y_t = x_t + decay·y_{t+1} to the end of the response, decay in (0, 1]."""
        return make("Scan", self, "suffix", decay)


class Rule(Expr):
    """True or false per token, per response or for the update."""

    is_rule: ClassVar[bool] = True

    def __and__(self, other: Any) -> Rule:
        return make("Logic", "&", self, as_rule(other, "&"))

    def __or__(self, other: Any) -> Rule:
        return make("Logic", "|", self, as_rule(other, "|"))

    def __invert__(self) -> Rule:
        return make("Not", self)

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
    __pow__ = __rpow__ = __add__

    def sample(
        self,
        size: float | Number | str,
        seed: int = 0,
        of: Literal["rule", "all"] = "rule",
        round: Literal["ceil", "floor"] = "ceil",
        at_least: int = 0,
    ) -> Rule:
        """A random subset of the rule's tokens, the same for any split of the update.

        Args:
            size: a number of tokens (int), a fraction in [0, 1] (float), or an expression with one
                value for the update: a number of tokens, such as `(prob < 0.002).count()`.
            seed: tokens are ranked by hash(seed, update, response id, position).
            of: the fraction is of the rule's tokens, or of all tokens of the update.
            round: "ceil" or "floor" of fraction·n, or of the expression.
            at_least: the number of tokens is raised to this, if the rule has that many.
        """
        size = as_number(size) if isinstance(size, str) else size
        return make("Sample", self, size, seed, of, round, at_least)

    def any(self, by: By = "update", within: Rule | str | None = None) -> Rule:
        """Whether the rule holds somewhere in the population; false if it is empty.

        The arguments are those of `Number.mean`.
        """
        return make("Quantified", self, "any", by, _rule_or_none(within))

    def all(self, by: By = "update", within: Rule | str | None = None) -> Rule:
        """Whether the rule holds everywhere in the population; true if it is empty."""
        return make("Quantified", self, "all", by, _rule_or_none(within))

    def count(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The number of tokens, or responses, of the population on which the rule holds."""
        return make("Aggregate", self, "count", by, _rule_or_none(within))

    def share(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """`count` divided by the size of the population."""
        return make("Aggregate", self, "share", by, _rule_or_none(within))


def _function(name: str, *values: Any) -> Number:
    return make("Function", name, tuple(map(as_number, values)))


def exp(number: Any) -> Number:
    """e^x."""
    return _function("exp", number)


def log(number: Any) -> Number:
    """The natural logarithm of x."""
    return _function("log", number)


def sqrt(number: Any) -> Number:
    """√x."""
    return _function("sqrt", number)


def sign(number: Any) -> Number:
    """−1, 0 or 1."""
    return _function("sign", number)


def minimum(left: Any, right: Any) -> Number:
    """The smaller of two numbers, token by token."""
    return _function("minimum", left, right)


def maximum(left: Any, right: Any) -> Number:
    """The larger of two numbers, token by token."""
    return _function("maximum", left, right)


def clip(number: Any, low: Any, high: Any) -> Number:
    """min(max(x, low), high)."""
    return _function("clip", number, low, high)


def when(rule: Rule | str, then: Any, otherwise: Any) -> Number:
    """A number per token: `then` on tokens of the rule, `otherwise` on all others.

    `then` and `otherwise` are numbers, expressions or text; the text "W" is the controller W.

    Example:
        >>> from rlobj import surprisal
        >>> str(when(surprisal.top(0.1), "W", 1))
        'when(surprisal.top(0.1), W, 1)'
    """
    return make("When", as_rule(rule, "when"), as_number(then), as_number(otherwise))


def outside(rule: Rule) -> Rule:
    """The tokens that a rule does not select: also those on which it is undefined, unlike `~`."""
    parts = {type(node).__name__ for node in rule.walk()}
    defined = parts.isdisjoint(("Aggregate", "Quantile", "Rank"))
    return ~rule if defined else when(rule, 0, 1) > 0


def column(name: str) -> Number:
    """One of the columns of `TokenBatch(columns=...)`, by name.

    Example:
        >>> str(column("turn") > 1)
        'turn > 1'
    """
    with declared((name,)):
        return make("Column", name)


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
    return make("Constant", value)


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
