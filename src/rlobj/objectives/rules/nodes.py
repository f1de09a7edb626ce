"""The nodes of expressions: one small frozen class each, built by the operators of `operators`.

This module only describes expressions; `rlobj.objectives.evaluator` evaluates them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, is_dataclass
from typing import Any, ClassVar, Literal, get_args

from rlobj.base.errors import ConfigError, nearest
from rlobj.objectives.rules import checks
from rlobj.objectives.rules.columns import BY_RESPONSE, COLUMNS, declared_columns
from rlobj.objectives.rules.expression import Expr, Level
from rlobj.objectives.rules.operators import By, Number, Rule


@dataclass(frozen=True)
class Column(Number):
    """A column by name."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in COLUMNS and self.name not in declared_columns():
            raise ConfigError(f"unknown column '{self.name}'.{nearest(self.name, COLUMNS)}")

    @property
    def level(self) -> Level:
        return Level.RESPONSE if self.name in BY_RESPONSE else Level.TOKEN

    def __call__(self, name: str) -> Number:
        """`reward("format")`: one of several rewards, by its name."""
        if self.name != "reward":
            raise TypeError(f"'{self.name}' is a column, not a function")
        return NamedReward(name)


@dataclass(frozen=True)
class NamedReward(Number):
    """One of a response's rewards, by its name."""

    name: str
    level: ClassVar[Level] = Level.RESPONSE


@dataclass(frozen=True)
class Constant(Number):
    """A number."""

    value: float

    def __post_init__(self) -> None:
        if not abs(self.value) <= sys.float_info.max:
            raise ConfigError(f"a number in a rule must be finite, got {self.value}")
        object.__setattr__(self, "value", checks.plain(self.value))


@dataclass(frozen=True)
class Controlled(Number):
    """The current value of a controller, by name."""

    name: str

    def __post_init__(self) -> None:
        if not (self.name.isidentifier() and self.name[0].isupper()):
            advice = nearest(self.name, (*COLUMNS, *declared_columns()))
            raise ConfigError(
                f"unknown name '{self.name}'.{advice} A controller's name begins with a capital; a "
                "column of your own is declared in 'columns'."
            )


@dataclass(frozen=True)
class Arithmetic(Number):
    """left (+ − * / **) right."""

    operator: str
    left: Number
    right: Number


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number


@dataclass(frozen=True)
class Function(Number):
    """abs, exp, log, sqrt, sign, minimum, maximum or clip of numbers."""

    name: str
    arguments: tuple[Number, ...]


@dataclass(frozen=True)
class When(Number):
    """`then` on tokens of the rule, `otherwise` on all others."""

    rule: Rule
    then: Number
    otherwise: Number


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
    round: checks.Rounding = "ceil"
    at_least: int = 0
    none_below: int = 0
    by: By = "update"
    level: ClassVar[Level] = Level.TOKEN

    def __post_init__(self) -> None:
        _check_ranked(self.side, self.value, self.fraction, self.by)
        object.__setattr__(self, "fraction", checks.plain(self.fraction))
        checks.check_choice("round", self.round, get_args(checks.Rounding))
        checks.check_size(f"{self.side}(at_least=...)", self.at_least)
        checks.check_size(f"{self.side}(none_below=...)", self.none_below)

    def size(self, population: int) -> int:
        """k, the number of tokens to select from a population, without ties."""
        k = min(max(checks.share(self.fraction, population, self.round), self.at_least), population)
        return k if k >= self.none_below else 0


@dataclass(frozen=True)
class Quantile(Number):
    """The ceil(q·n)-th smallest value of a population; see `Number.quantile`."""

    value: Number
    q: float
    within: Rule | None = None
    by: By = "update"

    def __post_init__(self) -> None:
        _check_ranked("quantile", self.value, self.q, self.by)
        object.__setattr__(self, "q", checks.plain(self.q))

    @property
    def level(self) -> Level:
        return _level(self.by)

    def size(self, population: int) -> int:
        """The value's place from below, from 1."""
        return max(checks.share(self.q, population, "ceil"), 1)


@dataclass(frozen=True)
class Sample(Rule):
    """A random subset of a rule's tokens; see `Rule.sample`."""

    rule: Rule
    amount: float | Number
    seed: int = 0
    of: Literal["rule", "all"] = "rule"
    round: Literal["ceil", "floor"] = "ceil"
    at_least: int = 0
    level: ClassVar[Level] = Level.TOKEN

    def __post_init__(self) -> None:
        amount = self.amount
        given = isinstance(amount, Number) and amount.level == Level.UPDATE
        whole = type(amount) is int and amount >= 0
        if not given and not whole and not (isinstance(amount, float) and 0 <= amount <= 1):
            raise ConfigError(
                f"sample({amount}): expected a whole number of tokens, a float in [0, 1], or an "
                "expression with one value for the update, such as (prob < 0.002).count()"
            )
        if type(self.seed) is not int or not -(2**63) <= self.seed < 2**63:
            raise ConfigError(f"sample(seed={self.seed!r}): expected a whole number of 64 bits")
        checks.check_size("sample(at_least=...)", self.at_least)
        checks.check_choice("sample(): of", self.of, ("rule", "all"))
        checks.check_choice("round", self.round, ("ceil", "floor"))
        if not isinstance(amount, Number):
            object.__setattr__(self, "amount", checks.plain(amount))

    def size(self, amount: float, rule: int, population: int) -> int:
        """The number of tokens to select, if `rule` of `population` tokens are the rule's.

        Args:
            amount: of this node, or the value of its expression.
            rule: number of tokens of the rule, over all ranks.
            population: number of tokens of the update, over all ranks.
        """
        if type(amount) is int:
            k = amount
        else:
            k = checks.share(amount, rule if self.of == "rule" else population, self.round)
        return min(max(k, self.at_least), rule)


@dataclass(frozen=True)
class _OfPopulation:
    """A statistic of a population: the fields of aggregates that are numbers and of those that are
    rules."""

    of: Number | Rule
    statistic: str
    by: By = "update"
    within: Rule | None = None

    def __post_init__(self) -> None:
        checks.check_choice(f"{self.statistic}(): by", self.by, get_args(By))
        if self.of.level == Level.UPDATE:
            raise ConfigError(
                f"{self.statistic}() needs a column, and '{self.of}' is the same for the whole "
                "update"
            )

    @property
    def level(self) -> Level:
        return _level(self.by)

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens or responses."""
        return _counted(self.by, self.of)


@dataclass(frozen=True)
class Aggregate(_OfPopulation, Number):
    """The mean, sum, min or max of a number, or the count or share of a rule."""


@dataclass(frozen=True)
class Rank(_OfPopulation, Number):
    """The place of each value in its population, from 0 to 1; see `Number.rank`."""

    @property
    def level(self) -> Level:
        return self.counted


@dataclass(frozen=True)
class Quantified(_OfPopulation, Rule):
    """Whether a rule holds somewhere (any) or everywhere (all) in a population."""


@dataclass(frozen=True)
class Scan(Number):
    """A sum along the response; see `Number.prefix_sum`."""

    value: Number
    side: Literal["prefix", "suffix"]
    decay: float = 1.0
    level: ClassVar[Level] = Level.TOKEN

    def __post_init__(self) -> None:
        checks.check_fraction(f"{self.side}_sum(): the decay", self.decay, above=0)
        object.__setattr__(self, "decay", checks.plain(self.decay))


class CustomRule(Rule):
    """Base class of rules written in Python; subclasses are frozen dataclasses.

    Example:
        >>> from dataclasses import dataclass
        >>> from rlobj import CustomRule, prob
        >>> @dataclass(frozen=True)
        ... class Isolated(CustomRule):
        ...     threshold: float = 0.002
        ...     def reads(self):
        ...         return (prob,)
        ...     def select(self, frame):
        ...         rare = frame.number(prob) < self.threshold
        ...         alone = frame.table.sum_by_response(rare.double()) == 1
        ...         return rare & frame.table.spread(alone)
    """

    origin: ClassVar[str] = ""
    level: ClassVar[Level] = Level.TOKEN  # pyright: ignore[reportIncompatibleMethodOverride]

    @property
    def target(self) -> str:
        """The import path, as text has it: custom("my_pkg.rules:Isolated", threshold=0.002)."""
        return self.origin or f"{type(self).__module__}:{type(self).__qualname__}"

    def reads(self) -> tuple[Expr, ...]:
        """The expressions that `select` asks the frame for; the objective needs their columns."""
        return ()

    def children(self) -> tuple[Expr, ...]:
        reads = self.reads()
        if not is_dataclass(self) or type(self).__hash__ is None or not isinstance(reads, tuple):
            raise ConfigError(
                f"{self.target}: write @dataclass(frozen=True) above the class, and return a tuple "
                "of expressions from reads"
            )
        return (*super().children(), *reads)

    def select(self, frame: Any) -> Any:
        """The rule's tokens, bool [N].

        `plan` calls this once per update on every rank, with all tokens of this rank. The result
        must not depend on how the update is split into tables or ranks: tokens of other ranks may
        only be read through `frame.comm.sum`, which every rank must call equally often. The
        functions of `rlobj.objectives.statistics` are exact and take `frame.comm`.

        Args:
            frame: `number(expression)` [N], `rule(expression)` bool [N], `decided` bool [N],
                `table` (the TokenBatch of this rank's tokens), `comm` and `state`.
        """
        raise NotImplementedError


def _check_ranked(name: str, value: Number, fraction: float, by: By) -> None:
    """Check the arguments of a cut or a quantile."""
    if not any(isinstance(node, (Column, NamedReward)) for node in value.walk()):
        raise ConfigError(f"{name}() needs a column to rank by, got '{value}'")
    checks.check_fraction(f"{name}(): the fraction", fraction)
    checks.check_choice(f"{name}(): by", by, ("update", "group", "response"))


def _level(by: By) -> Level:
    return {"update": Level.UPDATE, "position": Level.TOKEN}.get(by, Level.RESPONSE)


def _counted(by: By, of: Expr) -> Level:
    return Level.TOKEN if Level.TOKEN in (_level(by), of.level) else Level.RESPONSE
