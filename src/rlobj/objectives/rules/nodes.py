"""Expressions: numbers and rules with their operators and methods, and the nodes that these build.

`str(e)` has the fewest parentheses that keep `parse(str(e)) == e`. `describe` says in words what a
node selects or computes. This module only describes expressions; `rlobj.objectives.frame` evaluates
them.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.columns import COLUMNS, Level

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
Rounding = Literal["ceil", "floor", "linear"]
Unit = Literal["token", "response", "turn"]
"""What a cut or a quantile ranks."""
Path = Literal["response", "turn"]
BY = {
    "update": Level.UPDATE,
    "group": Level.ROLLOUT,
    "position": Level.TOKEN,
    "rollout": Level.ROLLOUT,
    "response": Level.RESPONSE,
    "turn": Level.TURN,
    "group_turn": Level.TURN,
}
"""The populations, and what lies in one: the update, a response, a turn or a token."""
_CUT_BY = [by for by in BY if by != "position"]


class Expr:
    """An expression: a `Number` (one number per token) or a `Rule` (true or false per token).

    `==` is true if two expressions are the same; it does not compare tokens.
    """

    is_rule: ClassVar[bool]
    reads_tokens: ClassVar[bool] = False
    """Whether it reads values of tokens itself, and not only through its parts."""
    from_text: ClassVar[Callable[[str], Expr]]  # `parsing` sets it
    _strength: ClassVar[int] = ATOM

    def __init_subclass__(cls) -> None:
        cls.__repr__ = lambda self: str(self)  # a dataclass keeps it

    def __bool__(self) -> bool:
        raise TypeError(
            f"'{self}' is not True or False. Write (0 < prob) & (prob < 1) for 0 < prob < 1, and "
            "&, |, ~ for and, or, not"
        )

    @cached_property
    def level(self) -> Level:
        """The finest level of the parts; constants have one value for the update."""
        return max((child.level for child in self.children()), default=Level.UPDATE)

    @cached_property
    def expanded_size(self) -> int:
        """The number of expressions in its text, if the names of `let` are written out."""
        return 1 + sum(child.expanded_size for child in self.children())

    def children(self) -> tuple[Expr, ...]:
        """The expressions that this one is built from."""
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        lists = [value if isinstance(value, tuple) else (value,) for value in values]
        return tuple(part for items in lists for part in items if isinstance(part, Expr))

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

    def own_columns(self) -> list[str]:
        """The TokenBatch columns that it reads itself."""
        return []

    def batch_columns(self) -> list[str]:
        """The TokenBatch columns that it and its parts read, besides advantages."""
        return [column for node in self.walk() for column in node.own_columns()]

    def describe(self) -> str:
        """What it selects or computes from a population, in words; "" if it has none."""
        return ""


def inside(child: Expr, strength: int) -> str:
    """The text of a child, in parentheses if it binds more weakly than `strength`."""
    return str(child) if child._strength >= strength else f"({child})"


def _settings(node: Any, required: bool = False) -> list[str]:
    """`name=value` of each field that is not at its default; of those without one if `required`."""
    return [
        f"{field.name}={str(value)!r}" if field.name == "by" else f"{field.name}={value!r}"
        for field in fields(node)
        if (value := getattr(node, field.name)) != field.default
        and (required or field.default is not MISSING)
    ]


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


def _plain(value: float) -> float:
    """The number as a Python int or float: unlike numpy's, its repr is the number alone."""
    return int(value) if isinstance(value, int) and abs(value) <= 2**53 else float(value)


def check_choice(what: str, value: object, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices."""
    if value not in choices:
        raise ConfigError(f"{what}={value!r}: expected one of {', '.join(choices)}")


def _share(what: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value <= 1):
        raise ConfigError(f"{what} must lie in [0, 1], got {value!r}")
    return _plain(value)


def _whole(what: str, value: Any, least: int = 0) -> int:
    if type(value) is not int or not least <= value < 2**63:
        raise ConfigError(f"{what} must be a whole number >= {least}, got {value!r}")
    return value


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
        return Constant(-self.value) if isinstance(self, Constant) else Negative(self)

    def __abs__(self) -> Number:
        return Function("abs", (self,))

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
        return MeanCut(self, limit, within, by)

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
        return Quantile(self, q, within, by, of, interpolate)

    def rank(self, within: Rule | str | None = None, by: By = "update") -> Number:
        """(rank − 1)/(n − 1) among the population's n values: 0 = smallest, 1 = largest.

        Equal values have the mean of their ranks, and the only value of a population has 0.5. The
        population is one of responses if the number is theirs, as for `mean`.

        Args:
            within: the population; all others are undefined. None = all.
            by: one population for the update, or one for each group, position, response, turn
                or number of a turn in the group ("group_turn").
        """
        return Rank("rank", self, by, within)

    def mean(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The mean over a population's tokens, or over its responses if the number is theirs.

        Args:
            by: one population for the update, or one for each group, position, response, turn
                or number of a turn in the group ("group_turn").
            within: the population; a response belongs to it if the rule holds for the response, or
                for one of its tokens if the rule is one of tokens.
        """
        return Aggregate("mean", self, by, within)

    def std(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The unbiased standard deviation of a population; 0 of one value or of equal ones.

        The arguments are those of `mean`.
        """
        return Aggregate("std", self, by, within)

    def sum(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The sum over a population, 0 if it is empty; the arguments are those of `mean`."""
        return Aggregate("sum", self, by, within)

    def min(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The smallest value of a population; the arguments are those of `mean`."""
        return Aggregate("min", self, by, within)

    def max(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The largest value of a population; the arguments are those of `mean`."""
        return Aggregate("max", self, by, within)

    def prefix_sum(self, decay: float | Number | str = 1.0, by: Path = "response") -> Number:
        """y_t = x_t + d_t·y_{t−1} from the start of the response; d_t in [0, 1] is the decay.

        It goes from token to token, but from turn to turn, through all rows of a rollout, if the
        number has one value per turn: `turn_reward.prefix_sum()` counts the reward of each once.
        By turn, the sum starts again at the first token of each turn.

        Args:
            decay: a number, or an expression with its value at the token (or turn) that receives
                the sum. A sum is also undefined from the token on where its decay is.
            by: what it goes along.
        """
        return Scan("prefix_sum", self, decay, by)

    def suffix_sum(self, decay: float | Number | str = 1.0, by: Path = "response") -> Number:
        """y_t = x_t + d_t·y_{t+1} to the end of the response; the rest is as in `prefix_sum`.

        `turn_reward.suffix_sum(decay=0.9)` is the discounted return from the turn on.
        """
        return Scan("suffix_sum", self, decay, by)

    def prefix_min(self, by: Path = "response") -> Number:
        """The smallest value from the start of the response to the token, as in `prefix_sum`."""
        return Scan("prefix_min", self, by=by)

    def prefix_max(self, by: Path = "response") -> Number:
        """The largest value from the start of the response to the token, as in `prefix_sum`."""
        return Scan("prefix_max", self, by=by)

    def suffix_min(self, by: Path = "response") -> Number:
        """The smallest value from the token to the end of the response, as in `suffix_sum`."""
        return Scan("suffix_min", self, by=by)

    def suffix_max(self, by: Path = "response") -> Number:
        """The largest value from the token to the end of the response, as in `suffix_sum`."""
        return Scan("suffix_max", self, by=by)


class Rule(Expr):
    """True or false per token, per response or for the update."""

    is_rule: ClassVar[bool] = True

    def __and__(self, other: Any) -> Rule:
        return Logic("&", self, as_rule(other, "&"))

    def __or__(self, other: Any) -> Rule:
        return Logic("|", self, as_rule(other, "|"))

    def __invert__(self) -> Rule:
        return Not(self)

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
        return Quantified("any", self, by, within)

    def all(self, by: By = "update", within: Rule | str | None = None) -> Rule:
        """Whether the rule holds everywhere in the population; true if it is empty."""
        return Quantified("all", self, by, within)

    def count(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """The number of tokens, or responses, of the population on which the rule holds."""
        return Aggregate("count", self, by, within)

    def share(self, by: By = "update", within: Rule | str | None = None) -> Number:
        """`count` divided by the size of the population."""
        return Aggregate("share", self, by, within)


def as_number(value: Any) -> Number:
    """A Number from an expression, a number or text.

    Raises:
        ConfigError: something else.
    """
    value = Expr.from_text(value) if isinstance(value, str) else value
    if isinstance(value, Number):
        return value
    if isinstance(value, Rule):
        raise ConfigError(f"expected a number, got a rule; write when({value}, 1, 0)")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"expected a number, got {type(value).__name__} '{value}'")
    return Constant(value)


def as_rule(value: Any, where: str) -> Rule:
    """A Rule from an expression or text; `where` is what takes it, for the error message."""
    value = Expr.from_text(value) if isinstance(value, str) else value
    if isinstance(value, Rule):
        return value
    raise ConfigError(f"{where} takes a rule such as prob < 0.002, got '{value}'")


@dataclass(frozen=True)
class Column(Number):
    """A column by name; its level is what it has one value for."""

    reads_tokens: ClassVar[bool] = True
    name: str
    level: Level = Level.TOKEN  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.name in COLUMNS:
            object.__setattr__(self, "level", COLUMNS[self.name].level)

    def __str__(self) -> str:
        return self.name

    def own_columns(self) -> list[str]:
        if self.name in COLUMNS:
            return [*COLUMNS[self.name].reads]
        return ["turn", self.name] if self.level == Level.TURN else [self.name]

    def __call__(self, name: str) -> Number:
        """`reward("format")`: one of several rewards, by its name."""
        if self.name != "reward" or not isinstance(name, str):
            raise ConfigError(f"write reward('format'), got {self.name}({name!r})")
        return NamedReward(name)


By = (
    Literal["update", "group", "position", "rollout", "response", "turn", "group_turn"]
    | str
    | Column
)
"""Which populations there are. A column of one's own means: those of a group that have the same
value in this column; text writes its name."""


@dataclass(frozen=True)
class NamedReward(Number):
    """One of a response's rewards, by its name."""

    reads_tokens: ClassVar[bool] = True
    name: str
    level: ClassVar[Level] = Level.ROLLOUT

    def __str__(self) -> str:
        return f"reward({self.name!r})"


@dataclass(frozen=True, eq=False)
class Named(Expr):
    """A name that an objective's `let` gives to an expression.

    A name that is read twice is one node. What is asked of a node does not go through it twice, or
    31 names, each twice the one before, would take 2^31 steps.
    """

    name: str
    value: Any

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        same = type(self) is type(other) and self.name == str(other)
        return same and str(self.value) == str(other.value)  # type: ignore[attr-defined]

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
        number = isinstance(self.value, int | float) and abs(self.value) <= sys.float_info.max
        if not number:
            raise ConfigError(f"a number in a rule must be finite, got {self.value!r}")
        object.__setattr__(self, "value", _plain(self.value))

    def __str__(self) -> str:
        return repr(self.value)

    @property
    def _strength(self) -> int:
        return UNARY if math.copysign(1, self.value) < 0 else NUMBER


@dataclass(frozen=True)
class Controlled(Number):
    """The current value of a controller, by name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Binary(Expr):
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


class Arithmetic(Binary, Number):
    """left (+ − * / **) right."""


class Compare(Binary, Rule):
    """left (< <= > >=) right."""


class Logic(Binary, Rule):
    """left (& |) right."""


@dataclass(frozen=True)
class Negative(Number):
    """−x."""

    operand: Number
    _strength: ClassVar[int] = UNARY

    def __str__(self) -> str:
        return f"-{inside(self.operand, UNARY)}"


@dataclass(frozen=True)
class Not(Rule):
    """~rule."""

    operand: Rule
    _strength: ClassVar[int] = UNARY

    def __str__(self) -> str:
        return f"~{inside(self.operand, UNARY)}"


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


def operands(expression: Any, kind: type[Logic | Arithmetic], operator: str) -> list[Any]:
    """The operands of a chain of one operator: a | b | c -> a, b, c; None has none."""
    if isinstance(expression, kind) and expression.operator == operator:
        sides = (expression.left, expression.right)
        return [part for side in sides for part in operands(side, kind, operator)]
    return [] if expression is None else [expression]


class Method(Expr):
    """What a method of a number or a rule builds: `value.method(argument, name=setting)`.

    Its text and the checks of its arguments follow from its fields.
    """

    method: Any
    value: Any
    by: Any
    choices: ClassVar[dict[str, Sequence[str]]] = {}
    """What some of the arguments may be; `by` may also be a column of one's own."""

    def __post_init__(self) -> None:
        for name, choices in self.choices.items():
            argument = getattr(self, name)
            if name != "by" or not isinstance(argument, Column):
                check_choice(f"{self.method}(): {name}", argument, choices)
        for name, argument in [*vars(self).items()]:
            if name in _READ:
                read = _READ[name](f"{self.method}(): {name}", argument)
                object.__setattr__(self, name, read)

    def __str__(self) -> str:
        required = [f.name for f in fields(self) if f.default is MISSING and f.name != "method"]  # type: ignore[arg-type]
        value, *first = (getattr(self, name) for name in required)
        arguments = ", ".join([*map(repr, first), *_settings(self)])
        return f"{inside(value, ATOM)}.{self.method}({arguments})"


def _decay(what: str, value: Any) -> float | Number:
    decay = as_number(value) if isinstance(value, Expr | str) else value
    decay = decay.value if isinstance(decay, Constant) else decay
    return decay if isinstance(decay, Number) else _share(what, decay)


_READ: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("fraction", "q"), _share),
    "decay": _decay,
    **dict.fromkeys(("at_least", "none_below"), _whole),
    "seed": lambda what, value: _whole(what, value, -(2**63)),
    "limit": lambda what, value: Constant(value).value,
    "within": lambda what, value: None if value is None else as_rule(value, "within"),
}
"""The arguments of methods, read and checked."""


class Populated(Method):
    """What reads populations: those of `by`, of the tokens, turns or responses of `within`."""

    within: Any

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value.level == Level.UPDATE:
            raise ConfigError(f"{self.method}() needs a column; '{self.value}' is one number")

    @property
    def by_level(self) -> Level:
        """What lies in one population."""
        return self.by.level if isinstance(self.by, Column) else BY[self.by]

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens, turns or responses."""
        raise NotImplementedError

    @cached_property
    def level(self) -> Level:
        """What selects or ranks has a value for each member of a population, and so has a statistic
        by a column of one's own; by the others, each population has one."""
        of_members = isinstance(self, Cut | MeanCut | Sample | Rank)
        return self.counted if of_members or isinstance(self.by, Column) else self.by_level

    def own_columns(self) -> list[str]:
        return ["turn"] if Level.TURN in (self.by_level, self.counted) else []

    def population(self) -> str:
        """The population in words: each response's n tokens with entropy > 1."""
        unit = f"n {self.counted.name.lower()}s"
        texts = {
            "update": f"the update's {unit}",
            "position": f"the {unit} of a group's position",
            "group_turn": f"the {unit} of a group's turns of one number",
        }
        by_column = f"the {unit} of a group with the same {self.by}"
        text = texts.get(self.by, f"each {self.by}'s {unit}" if self.by in BY else by_column)
        return text + (f" with {self.within}" if self.within is not None else "")


class Ranking(Populated):
    """What cuts and quantiles have in common: they rank tokens, turns or responses."""

    of: Any
    choices: ClassVar[dict[str, Sequence[str]]] = {"by": _CUT_BY, "of": get_args(Unit)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.value.level > self.counted:
            level, mean = self.value.level.name.lower(), self.value.mean(self.of)
            raise ConfigError(f"'{self.value}' has one value per {level}. Rank {mean}")
        if self.by_level > self.counted:
            raise ConfigError(f"{self.method}(): a {self.of} lies in several of by='{self.by}'")

    @property
    def counted(self) -> Level:
        if self.of == "response" and self.value.level < Level.TURN and self.by_level < Level.TURN:
            return max(self.value.level, self.by_level, Level.ROLLOUT)
        return Level[self.of.upper()]

    def ranked(self) -> str:
        """What is ranked, in words."""
        return f"{self.value} of {self.population()}"


@dataclass(frozen=True)
class Cut(Ranking, Rule):
    """The largest or smallest tokens of a population; see `Number.top`."""

    method: Literal["top", "bottom"]
    value: Number
    fraction: float
    within: Any = None
    round: Rounding = "ceil"
    at_least: int = 0
    none_below: int = 0
    by: By = "update"
    of: Unit = "token"
    choices: ClassVar[Any] = {**Ranking.choices, "round": get_args(Rounding)}

    def size(self, population: int) -> int:
        """k, the number of tokens or responses to select from a population, without ties."""
        share = rounded_share(self.fraction, population, self.round)
        k = min(max(share, self.at_least), population)
        return k if k >= self.none_below else 0

    def describe(self) -> str:
        which = "largest" if self.method == "top" else "smallest"
        k = f"k = {self.round}({self.fraction}·n)"
        if self.round == "linear":
            k = f"k = floor({self.fraction}·(n − 1)) + 1"
        return f"{self}: the k {which} {self.ranked()}, {k}, ties kept"


@dataclass(frozen=True)
class MeanCut(Ranking, Rule):
    """The smallest tokens up to a mean; see `Number.bottom_to_mean`."""

    value: Number
    limit: float
    within: Any = None
    by: By = "update"
    method: ClassVar[str] = "bottom_to_mean"
    of: ClassVar[Unit] = "token"

    def describe(self) -> str:
        most = f"as many as have a mean of at most {self.limit}, equal ones together"
        return f"{self}: the smallest {self.ranked()}, {most}"


@dataclass(frozen=True)
class Quantile(Ranking, Number):
    """A quantile of a population; see `Number.quantile`."""

    value: Number
    q: float
    within: Any = None
    by: By = "update"
    of: Unit = "token"
    interpolate: bool = False
    method: ClassVar[str] = "quantile"

    def place(self, population: int) -> int:
        """The value's place from below, from 1; the lower one of two; 0 in an empty population."""
        rounding: Rounding = "linear" if self.interpolate else "ceil"
        return max(rounded_share(self.q, population, rounding), 1) if population else 0

    def describe(self) -> str:
        which = f"the ceil({self.q}·n)-th smallest"
        if self.interpolate:
            which = f"at {self.q}·(n − 1) places above the smallest one, interpolated,"
        return f"{self}: {which} {self.ranked()}"


@dataclass(frozen=True)
class Sample(Method, Rule):
    """A random subset of a rule's tokens; see `Rule.sample`."""

    value: Rule
    amount: float | Number
    seed: int = 0
    of: Literal["rule", "all", "response"] = "rule"
    round: Literal["ceil", "floor"] = "ceil"
    at_least: int = 0
    method: ClassVar[str] = "sample"
    choices: ClassVar[Any] = {"of": ("rule", "all", "response"), "round": ("ceil", "floor")}

    def __post_init__(self) -> None:
        super().__post_init__()
        amount = self.amount
        if isinstance(amount, Number):
            fits = amount.level == Level.UPDATE
        else:
            whole = type(amount) is int and amount >= 0
            fits = whole or (isinstance(amount, float) and 0 <= amount <= 1)
        if not fits:
            raise ConfigError(f"sample({amount}): expected a whole number, a share, or a count()")
        if not isinstance(amount, Number):
            object.__setattr__(self, "amount", _plain(amount))

    @cached_property
    def level(self) -> Level:
        """What is drawn: tokens or rollouts."""
        return Level.ROLLOUT if self.of == "response" else Level.TOKEN

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

    def describe(self) -> str:
        unit = f"{self.level.name.lower()}s"
        if not isinstance(self.amount, float):
            return f"sample: {self.amount} random {unit} with {self.value}"
        counted = "all tokens of the update" if self.of == "all" else f"the rule's {unit}"
        size = f"{self.round}({self.amount}·n)"
        return f"sample: {size} random {unit} with {self.value}; n counts {counted}"


@dataclass(frozen=True)
class Statistic(Populated):
    """A statistic of a population.

    Attributes:
        method: its name.
        value: the Number or Rule.
        by: the populations.
        within: the Rule whose members count; None = all.
    """

    method: str
    value: Any
    by: By = "update"
    within: Any = None
    choices: ClassVar[Any] = {"by": [*BY]}

    @property
    def counted(self) -> Level:
        """The unit of the population: the finer one of the number's and of the population's."""
        return max(self.value.level, self.by_level, Level.ROLLOUT)

    def describe(self) -> str:
        return f"{self}: over {self.population()}"


class Aggregate(Statistic, Number):
    """The mean, std, sum, min or max of a number, or the count or share of a rule."""


class Rank(Statistic, Number):
    """The place of each value in its population, from 0 to 1; see `Number.rank`."""


class Quantified(Statistic, Rule):
    """Whether a rule holds somewhere (any) or everywhere (all) in a population."""


@dataclass(frozen=True)
class Scan(Method, Number):
    """A sum or an extreme along the response or the turn; see `Number.prefix_sum`."""

    method: Literal[
        "prefix_sum", "suffix_sum", "prefix_min", "prefix_max", "suffix_min", "suffix_max"
    ]
    value: Number
    decay: Any = 1.0  # of sums
    by: Path = "response"
    choices: ClassVar[Any] = {"by": get_args(Path)}

    def __post_init__(self) -> None:
        super().__post_init__()
        turns = self.level == Level.TURN
        if self.by == "turn" and turns:
            raise ConfigError(f"'{self.value}' has one value per turn; leave out by='turn'")
        if turns and isinstance(self.decay, Number) and self.decay.level > Level.TURN:
            several = f"one value per turn, and the decay '{self.decay}' one per token"
            raise ConfigError(f"'{self.value}' has {several}. Use {self.decay.mean('turn')}")

    @cached_property
    def level(self) -> Level:
        """What it goes along: turns if the number is one of turns, else tokens."""
        return Level.TURN if self.value.level == Level.TURN else Level.TOKEN

    def own_columns(self) -> list[str]:
        return ["turn"] if self.by == "turn" else []

    def describe(self) -> str:
        step, (way, kind) = self.level.name.lower(), self.method.split("_")
        what = {"sum": "sum", "min": "smallest value", "max": "largest value"}[kind]
        span = f"{step} to the {self.by}'s end"
        if way == "prefix":
            span = f"{self.by}'s start to the {step}"
        decay = f", times {self.decay} per {step} of distance" if self.decay != 1 else ""
        return f"{self}: the {what} of {self.value} from the {span}{decay}"


def outside(rule: Rule) -> Rule:
    """The tokens that a rule does not select: also those on which it is undefined, unlike `~`."""
    undefined = any(isinstance(node, Aggregate | Quantile | Rank) for node in rule.walk())
    return When(rule, Constant(0), Constant(1)) > 0 if undefined else ~rule


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
    reads_tokens: ClassVar[bool] = True
    level: ClassVar[Level] = Level.TOKEN

    @property
    def target(self) -> str:
        """The import path, as text has it: custom("my_pkg.rules:Isolated", threshold=0.002)."""
        name = f"{type(self).__module__}:{type(self).__qualname__}"
        return vars(type(self)).get("origin", name)  # not that of its base

    def __str__(self) -> str:
        return f"custom({', '.join([repr(self.target), *_settings(self, required=True)])})"

    def reads(self) -> tuple[Expr, ...]:
        """The expressions that `select` asks the frame for; the objective needs their columns."""
        return ()

    def children(self) -> tuple[Expr, ...]:
        return (*super().children(), *self.reads())

    def describe(self) -> str:
        return f"{self}: {inspect.getdoc(type(self)) or 'a rule written in Python'}"

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


@dataclass(frozen=True)
class UnreadRule(Rule):
    """A rule written in Python whose class is not imported: its text, and the settings in it that
    are expressions."""

    reads_tokens: ClassVar[bool] = True
    level: ClassVar[Level] = Level.TOKEN
    text: str
    expressions: tuple[Expr, ...]

    def __str__(self) -> str:
        return self.text
