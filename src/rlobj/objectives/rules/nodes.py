"""Numbers and rules with their operators and methods, and the nodes that these build.

This module only describes expressions; `rlobj.objectives.frame` evaluates them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

from rlobj.base.errors import ConfigError, nearest
from rlobj.objectives.rules.arguments import (
    Rounding,
    check_choice,
    check_fraction,
    check_size,
    plain,
    rounded_share,
)
from rlobj.objectives.rules.columns import COLUMNS, LEVELS, declared_columns
from rlobj.objectives.rules.expression import NUMBER, UNARY, Binary, Expr, Level, call, inside
from rlobj.objectives.rules.populations import (
    CUT_BY,
    FINEST,
    By,
    OfPopulation,
    Path,
    Populated,
    Ranking,
    Unit,
)

SAMPLER_KNOWN = "sampler_known"
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
    """One number per token, per response or for the update."""

    is_rule: ClassVar[bool] = False

    __add__, __radd__ = _arithmetic("+")
    __sub__, __rsub__ = _arithmetic("-")
    __mul__, __rmul__ = _arithmetic("*")
    __truediv__, __rtruediv__ = _arithmetic("/")
    __pow__, __rpow__ = _arithmetic("**")
    __lt__, __le__, __gt__, __ge__ = map(_comparison, ("<", "<=", ">", ">="))

    def __neg__(self) -> Number:
        return Negative(self)

    def __abs__(self) -> Number:
        return Function("abs", (self,))

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
        of: Unit = "token",
    ) -> Rule:
        """The k = round(fraction·n) largest of the population's n tokens; ties are all kept.

        Args:
            fraction: share of the population, in [0, 1].
            within: the population; None = all tokens.
            round: "ceil" or "floor" of fraction·n (exact: 0.07·100 is 7); "linear":
                floor(fraction·(n − 1)) + 1, as many as lie up to `torch.quantile`.
            at_least: k is raised to this (and lowered to n).
            none_below: nothing is selected if k is below this.
            by: one population for the update, or one for each group, response or turn.
            of: "response" ranks the population's responses, by a number that each has one of:
                `length.bottom(0.5, by="group", of="response")`. n is their number. `within` is as
                for `mean`, and a response without tokens counts. "turn" ranks turns.
        """
        within = _rule_or_none(within)
        return Cut("top", self, fraction, within, round, at_least, none_below, by, of)

    def bottom(
        self,
        fraction: float,
        within: Rule | str | None = None,
        round: Rounding = "ceil",
        at_least: int = 0,
        none_below: int = 0,
        by: By = "update",
        of: Unit = "token",
    ) -> Rule:
        """The k smallest of the population's n tokens; the arguments are those of `top`."""
        within = _rule_or_none(within)
        return Cut("bottom", self, fraction, within, round, at_least, none_below, by, of)

    def bottom_to_mean(
        self, limit: float, within: Rule | str | None = None, by: By = "update"
    ) -> Rule:
        """The smallest tokens of the population: as many as have a mean of at most `limit`.

        The others are those that are removed if the largest value is removed until the mean of the
        rest is at most the limit. Equal values are removed together. Nothing is selected if the
        smallest value is above the limit. Source: M2PO, arXiv:2510.01161, algorithm 1.

        Args:
            limit: the largest mean, in the number's unit.
            within: the population; None = all tokens.
            by: one population for the update, or one for each group, response or turn.
        """
        return MeanCut(self, limit, _rule_or_none(within), by)

    def quantile(
        self,
        q: float,
        within: Rule | str | None = None,
        by: By = "update",
        of: Unit = "token",
        interpolate: bool = False,
    ) -> Number:
        """The ceil(q·n)-th smallest value: `x <= x.quantile(q)` is the same as `x.bottom(q)`.

        With `interpolate`, the value at q·(n − 1) places above the smallest one, linear between
        two values, as `torch.quantile` has it. The other arguments are those of `top`.
        """
        return Quantile(self, q, _rule_or_none(within), by, of, interpolate)

    def rank(self, within: Rule | str | None = None, by: By = "update") -> Number:
        """(rank − 1)/(n − 1) among the population's n values: 0 = smallest, 1 = largest.

        Equal values have the mean of their ranks, and the only value of a population has 0.5. The
        population is one of responses if the number is theirs, as for `mean`.

        Args:
            within: the population; all others are undefined. None = all.
            by: one population for the update, or one for each group, position, response, turn
                or number of a turn in the group ("group_turn").
        """
        return Rank(self, "rank", by, _rule_or_none(within))

    def mean(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The mean over a population's tokens, or over its responses if the number is theirs.

        Args:
            by: one population for the update, or one for each group, position, response, turn
                or number of a turn in the group ("group_turn").
            within: the population; a response belongs to it if the rule holds for the response, or
                for one of its tokens if the rule is one of tokens.
        """
        return Aggregate(self, "mean", by, _rule_or_none(within))

    def sum(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The sum over a population, 0 if it is empty; the arguments are those of `mean`."""
        return Aggregate(self, "sum", by, _rule_or_none(within))

    def min(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The smallest value of a population; the arguments are those of `mean`."""
        return Aggregate(self, "min", by, _rule_or_none(within))

    def max(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The largest value of a population; the arguments are those of `mean`."""
        return Aggregate(self, "max", by, _rule_or_none(within))

    def prefix_sum(self, decay: float = 1.0, by: Path = "response") -> Number:
        """y_t = x_t + decay·y_{t−1} from the start of the response, decay in (0, 1].

        It goes from token to token, but from turn to turn if the number has one value per turn:
        `turn_reward.prefix_sum()` counts the reward of each turn once. By turn, the sum starts
        again at the first token of each turn.
        """
        return Scan(self, "prefix", decay, by)

    def suffix_sum(self, decay: float = 1.0, by: Path = "response") -> Number:
        """y_t = x_t + decay·y_{t+1} to the end of the response; the rest is as in `prefix_sum`.

        `turn_reward.suffix_sum(decay=0.9)` is the discounted return from the turn on.
        """
        return Scan(self, "suffix", decay, by)


class Rule(Expr):
    """True or false per token, per response or for the update."""

    is_rule: ClassVar[bool] = True

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
    __pow__ = __rpow__ = __add__

    def sample(
        self,
        size: float | Number | str,
        seed: int = 0,
        of: Literal["rule", "all", "response"] = "rule",
        round: Literal["ceil", "floor"] = "ceil",
        at_least: int = 0,
    ) -> Rule:
        """A random subset of the rule's tokens, the same for any split of the update.

        Args:
            size: a number of tokens (int), a fraction in [0, 1] (float), or an expression with one
                value for the update: a number of tokens, such as `(prob < 0.002).count()`.
            seed: tokens are ranked by hash(seed, update, response id, position).
            of: the fraction is of the rule's tokens ("rule"), or of all tokens of the update
                ("all"). "response" draws and counts responses in place of tokens: those on which
                the rule holds, or on one of whose tokens it holds.
            round: "ceil" or "floor" of fraction·n, or of the expression.
            at_least: the number of tokens is raised to this, if the rule has that many.
        """
        size = as_number(size) if isinstance(size, str) else size
        return Sample(self, size, seed, of, round, at_least)

    def any(self, by: By = "update", within: Rule | str | None = None) -> Rule:
        """Whether the rule holds somewhere in the population; false if it is empty.

        The arguments are those of `Number.mean`.
        """
        return Quantified(self, "any", by, _rule_or_none(within))

    def all(self, by: By = "update", within: Rule | str | None = None) -> Rule:
        """Whether the rule holds everywhere in the population; true if it is empty."""
        return Quantified(self, "all", by, _rule_or_none(within))

    def count(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The number of tokens, or responses, of the population on which the rule holds."""
        return Aggregate(self, "count", by, _rule_or_none(within))

    def share(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """`count` divided by the size of the population."""
        return Aggregate(self, "share", by, _rule_or_none(within))


def as_number(value: Any) -> Number:
    """A Number from an expression, a number or text.

    Raises:
        ConfigError: something else.
    """
    value = Expr.from_text(value) if isinstance(value, str) else value
    if isinstance(value, Number):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        kind = "a rule" if isinstance(value, Rule) else f"{type(value).__name__}"
        raise ConfigError(f"expected a number, got {kind} '{value}'")
    return Constant(value)


def as_rule(value: Any, where: str) -> Rule:
    """A Rule from an expression or text; `where` is what takes it, for the error message."""
    value = Expr.from_text(value) if isinstance(value, str) else value
    if isinstance(value, Rule):
        return value
    raise ConfigError(
        f"{where} takes a rule such as prob < 0.002, got '{value}'. "
        "Put each comparison in parentheses: (advantage > 0) & (prob < 0.002)"
    )


def _rule_or_none(value: Any) -> Rule | None:
    return None if value is None else as_rule(value, "within")


@dataclass(frozen=True)
class Column(Number):
    """A column by name."""

    reads_tokens: ClassVar[bool] = True
    name: str

    def __post_init__(self) -> None:
        declared = declared_columns()
        if self.name not in COLUMNS and self.name not in declared:
            advice = nearest(self.name, (*COLUMNS, *declared))
            raise ConfigError(f"unknown column '{self.name}'.{advice}")
        level = LEVELS.get(self.name) or declared.get(self.name, "token")
        object.__setattr__(self, "_level", Level[level.upper()])

    def __str__(self) -> str:
        return self.name

    @property
    def level(self) -> Level:
        return self._level  # type: ignore[attr-defined]

    def names(self) -> dict[str, Level]:
        return {self.name: self.level}

    def own_columns(self) -> list[str]:
        own = ("turn", self.name) if self.level == Level.TURN else (self.name,)
        return [*COLUMNS.get(self.name, ("", own))[1]]

    def __call__(self, name: str) -> Number:
        """`reward("format")`: one of several rewards, by its name."""
        if self.name != "reward":
            raise TypeError(f"'{self.name}' is a column, not a function")
        return NamedReward(name)


@dataclass(frozen=True)
class NamedReward(Number):
    """One of a response's rewards, by its name."""

    reads_tokens: ClassVar[bool] = True
    name: str
    level: ClassVar[Level] = Level.RESPONSE

    def __str__(self) -> str:
        return f"reward({self.name!r})"


@dataclass(frozen=True, eq=False)
class Named(Expr):
    """A name that an objective's `let` gives to an expression.

    A name that is read twice is one node. What is asked of a node does not go through it twice, or
    31 names, each twice the one before, would take 2^31 steps.
    """

    name: str
    value: Any = field(repr=False)

    def __post_init__(self) -> None:
        vars(self).update(_level=self.value.level, _expanded_size=self.value.expanded_size)

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        same = type(self) is type(other) and self.name == str(other)
        return same and str(self.value) == str(other.value)  # type: ignore[attr-defined]

    @property
    def level(self) -> Level:
        return self._level  # type: ignore[attr-defined]

    @property
    def expanded_size(self) -> int:
        return self._expanded_size  # type: ignore[attr-defined]

    def expanded(self) -> Expr:
        return self.value.expanded()


class NamedNumber(Named, Number):
    """A number with a name."""


class NamedRule(Named, Rule):
    """A rule with a name."""


@dataclass(frozen=True)
class SamplerKnown(Rule):
    """`sampler_known`: the sampler reported the token's log-prob; never undefined."""

    reads_tokens: ClassVar[bool] = True
    level: ClassVar[Level] = Level.TOKEN

    def __str__(self) -> str:
        return SAMPLER_KNOWN

    def own_columns(self) -> list[str]:
        return ["sampler_logprobs"]


@dataclass(frozen=True)
class Constant(Number):
    """A number."""

    value: float

    def __post_init__(self) -> None:
        if not abs(self.value) <= sys.float_info.max:
            raise ConfigError(f"a number in a rule must be finite, got {self.value}")
        object.__setattr__(self, "value", plain(self.value))

    def __str__(self) -> str:
        return repr(self.value)

    @property
    def _strength(self) -> int:
        return UNARY if math.copysign(1, self.value) < 0 else NUMBER


@dataclass(frozen=True)
class Controlled(Number):
    """The current value of a controller, by name."""

    name: str

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name[0].isupper()):
            advice = nearest(self.name, (*COLUMNS, *declared_columns()))
            raise ConfigError(
                f"unknown name '{self.name}'.{advice} A controller's name begins with a capital; a "
                "column of your own is declared in 'columns', a score in 'scores'."
            )

    def __str__(self) -> str:
        return self.name


class Arithmetic(Binary, Number):
    """left (+ − * / **) right."""


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number
    _strength: ClassVar[int] = UNARY

    def __str__(self) -> str:
        constant = isinstance(self.operand, Constant)  # -0.5 is a constant
        return f"-({self.operand})" if constant else f"-{inside(self.operand, UNARY)}"


@dataclass(frozen=True)
class Function(Number):
    """abs, exp, log, sqrt, sign, minimum, maximum or clip of numbers."""

    name: str
    arguments: tuple[Number, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class When(Number):
    """`then` on tokens of the rule, `otherwise` on all others."""

    rule: Rule
    then: Number
    otherwise: Number

    def __str__(self) -> str:
        return f"when({self.rule}, {self.then}, {self.otherwise})"


class Compare(Binary, Rule):
    """left (< <= > >=) right."""


class Logic(Binary, Rule):
    """left (& |) right."""


def operands(expression: Any, kind: type[Logic | Arithmetic], operator: str) -> list[Any]:
    """The operands of a chain of one operator: a | b | c -> a, b, c; None has none."""
    if isinstance(expression, kind) and expression.operator == operator:
        sides = (expression.left, expression.right)
        return [part for side in sides for part in operands(side, kind, operator)]
    return [] if expression is None else [expression]


@dataclass(frozen=True)
class Not(Rule):
    """~rule."""

    operand: Rule
    _strength: ClassVar[int] = UNARY

    def __str__(self) -> str:
        return f"~{inside(self.operand, UNARY)}"


@dataclass(frozen=True)
class Cut(Ranking, Rule):
    """The largest or smallest tokens of a population; see `Number.top`."""

    side: Literal["top", "bottom"]
    value: Number
    fraction: float
    within: Rule | None = None
    round: Rounding = "ceil"
    at_least: int = 0
    none_below: int = 0
    by: By = "update"
    of: Unit = "token"

    def __post_init__(self) -> None:
        self.settle_by(self.side, CUT_BY)
        _check_ranked(self, self.side)
        check_fraction(f"{self.side}(): the fraction", self.fraction)
        object.__setattr__(self, "fraction", plain(self.fraction))
        check_choice("round", self.round, get_args(Rounding))
        check_size(f"{self.side}(at_least=...)", self.at_least)
        check_size(f"{self.side}(none_below=...)", self.none_below)

    def __str__(self) -> str:
        return call(self, self.value, self.side, self.fraction)

    def size(self, population: int) -> int:
        """k, the number of tokens or responses to select from a population, without ties."""
        k = min(
            max(rounded_share(self.fraction, population, self.round), self.at_least), population
        )
        return k if k >= self.none_below else 0


@dataclass(frozen=True)
class MeanCut(Ranking, Rule):
    """The smallest tokens up to a mean; see `Number.bottom_to_mean`."""

    value: Number
    limit: float
    within: Rule | None = None
    by: By = "update"
    of: ClassVar[Unit] = "token"

    def __post_init__(self) -> None:
        self.settle_by("bottom_to_mean", CUT_BY)
        _check_ranked(self, "bottom_to_mean")
        limit = None if isinstance(self.limit, str) else as_number(self.limit)
        if not isinstance(limit, Constant):
            raise ConfigError(f"bottom_to_mean(): the limit must be a number, got '{self.limit}'")
        object.__setattr__(self, "limit", limit.value)

    def __str__(self) -> str:
        return call(self, self.value, "bottom_to_mean", self.limit)


@dataclass(frozen=True)
class Quantile(Ranking, Number):
    """A quantile of a population; see `Number.quantile`."""

    value: Number
    q: float
    within: Rule | None = None
    by: By = "update"
    of: Unit = "token"
    interpolate: bool = False

    def __post_init__(self) -> None:
        self.settle_by("quantile", CUT_BY)
        _check_ranked(self, "quantile")
        check_fraction("quantile(): the fraction", self.q)
        object.__setattr__(self, "q", plain(self.q))

    def __str__(self) -> str:
        return call(self, self.value, "quantile", self.q)

    @property
    def level(self) -> Level:
        return self.by_level if self.by in FINEST else self.counted

    def place(self, population: int) -> int:
        """The value's place from below, from 1; the lower one of two; 0 in an empty population."""
        rounding: Rounding = "linear" if self.interpolate else "ceil"
        return max(rounded_share(self.q, population, rounding), 1) if population else 0


@dataclass(frozen=True)
class Sample(Ranking, Rule):
    """A random subset of a rule's tokens; see `Rule.sample`."""

    rule: Rule
    amount: float | Number
    seed: int = 0
    of: Literal["rule", "all", "response"] = "rule"
    round: Literal["ceil", "floor"] = "ceil"
    at_least: int = 0
    by: ClassVar[By] = "update"
    by_level: ClassVar[Level] = Level.UPDATE

    def __post_init__(self) -> None:
        amount = self.amount
        if isinstance(amount, Number):
            fits = amount.level == Level.UPDATE
        else:
            whole = type(amount) is int and amount >= 0
            fits = whole or (isinstance(amount, float) and 0 <= amount <= 1)
        if not fits:
            raise ConfigError(
                f"sample({amount}): expected a whole number of tokens, a float in [0, 1], or an "
                "expression with one value for the update, such as (prob < 0.002).count()"
            )
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"sample(seed={self.seed!r}): expected a whole number of 64 bits")
        check_size("sample(at_least=...)", self.at_least)
        check_choice("sample(): of", self.of, ("rule", "all", "response"))
        check_choice("round", self.round, ("ceil", "floor"))
        if not isinstance(amount, Number):
            object.__setattr__(self, "amount", plain(amount))

    def __str__(self) -> str:
        return call(self, self.rule, "sample", self.amount)

    def size(self, amount: float, rule: int, population: int) -> int:
        """The number of tokens (or responses) to select, if `rule` of `population` are the rule's.

        Args:
            amount: of this node, or the value of its expression.
            rule: number of tokens of the rule, over all ranks.
            population: number of tokens of the update, over all ranks.
        """
        if type(amount) is int:
            k = amount
        else:
            k = rounded_share(amount, population if self.of == "all" else rule, self.round)
        return min(max(k, self.at_least), rule)


class Aggregate(OfPopulation, Number):
    """The mean, sum, min or max of a number, or the count or share of a rule."""


class Rank(OfPopulation, Number):
    """The place of each value in its population, from 0 to 1; see `Number.rank`."""

    @property
    def level(self) -> Level:
        return self.counted


class Quantified(OfPopulation, Rule):
    """Whether a rule holds somewhere (any) or everywhere (all) in a population."""


@dataclass(frozen=True)
class Scan(Populated, Number):
    """A sum along the response or the turn; see `Number.prefix_sum`."""

    value: Number
    side: Literal["prefix", "suffix"]
    decay: float = 1.0
    by: Path = "response"

    def __post_init__(self) -> None:
        check_choice(f"{self.side}_sum(): by", self.by, get_args(Path))
        object.__setattr__(self, "by_level", FINEST[self.by])
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


def outside(rule: Rule) -> Rule:
    """The tokens that a rule does not select: also those on which it is undefined, unlike `~`."""
    undefined = any(isinstance(node, Aggregate | Quantile | Rank) for node in rule.walk())
    return When(rule, Constant(0), Constant(1)) > 0 if undefined else ~rule


def _check_ranked(node: Cut | MeanCut | Quantile, name: str) -> None:
    """Check the arguments of a cut or a quantile."""
    value, of = node.value, node.of
    if not any(node.reads_tokens for node in value.walk()):
        raise ConfigError(f"{name}() needs a column to rank by, got '{value}'")
    check_choice(f"{name}(): of", of, get_args(Unit))
    unit = Level[of.upper()]
    if value.level > unit:
        raise ConfigError(
            f"{name}(of='{of}') ranks {of}s, and '{value}' has one value per "
            f"{value.level.name.lower()}. Make one number per {of} of it: {value.mean(of)}"  # type: ignore[arg-type]
        )
    if node.by_level > unit:
        raise ConfigError(f"{name}(of='{of}', by='{node.by}'): a {of} lies in several populations")
