"""A slow evaluator of rules, written from the specification of the language alone.

It knows nothing of the library's evaluator. It visits tokens one after another in Python and adds
with `math.fsum`. A number is None where it is undefined. Beside its value it has a bound for the
rounding error; a decision that rounding could change raises `Close`.

A rule is True, False or None (undefined) on a token, or NOT_FINITE if this depends on a number that
is NaN or infinite. A population with such a number raises `NotFinite` wherever it is read.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from functools import cached_property, wraps
from itertools import product
from typing import Any, NamedTuple

import torch

from rlobj import TokenBatch
from rlobj.objectives.rules import Expr, Level
from rlobj.objectives.rules.nodes import rounded_share

NAN, INF = math.nan, math.inf
NOT_FINITE = "not finite"
LEVELS = {"token": Level.TOKEN, "turn": Level.TURN, "response": Level.RESPONSE}
LEVELS |= {"rollout": Level.ROLLOUT}
OF_UNIT = {"position": Level.TOKEN, "turn": Level.TURN, "group_turn": Level.TURN}
OF_UNIT |= {"response": Level.RESPONSE}

Outcome = bool | str | None
Place = tuple[int, Any]
"""A response and its token t; (i, None) is the response, and (i, ("turn", k)) is its turn k.

(i, ROLLOUT) is the rollout whose first row is the response i.
"""
ROLLOUT = "rollout"


class Close(Exception):
    """A decision lies within rounding errors."""


class NotFinite(Exception):
    """A population holds a number that is NaN or infinite, or a sum decays by one not in [0, 1]."""


class Approximate(NamedTuple):
    """A number and a bound of its rounding error."""

    value: float
    error: float = 0.0

    @property
    def finite(self) -> bool:
        return math.isfinite(self.value)


def function(compute: Callable[..., float]) -> Callable[..., Approximate | None]:
    """The function with rounding errors; undefined if an argument is."""

    @wraps(compute)
    def extended(*arguments: Approximate | None) -> Approximate | None:
        given = [argument for argument in arguments if argument is not None]
        if not all(argument.finite for argument in given):
            return Approximate(NAN)
        if len(given) < len(arguments):
            return None
        value = compute(*(argument.value for argument in given))
        if not any(argument.error for argument in given):
            return Approximate(value)
        corners = product(*({x.value - x.error, x.value + x.error} for x in given))
        others = [compute(*corner) for corner in corners]
        if not math.isfinite(value) or not all(map(math.isfinite, others)):
            return Approximate(value, INF)
        spread = max(abs(other - value) for other in others)
        return Approximate(value, 2 * spread + 1e-15 * abs(value))

    return extended


def by_torch(name: str) -> Callable[[float], float]:
    """One value through torch: its last bit may differ from that of `math`."""
    return lambda x: float(getattr(torch, name)(torch.tensor([x], dtype=torch.float64))[0])


def divided(x: float, y: float) -> float:
    return x / y if y else NAN


def power(x: float, y: float) -> float:
    try:
        result = x**y
    except (ZeroDivisionError, OverflowError):
        return NAN
    return NAN if isinstance(result, complex) else result


FUNCTIONS = {
    "+": function(operator.add),
    "-": function(operator.sub),
    "*": function(operator.mul),
    "/": function(divided),
    "negative": function(operator.neg),
    "abs": function(abs),
    "exp": function(by_torch("exp")),
    "log": function(by_torch("log")),
    "sqrt": function(by_torch("sqrt")),
    "sign": function(lambda x: float((x > 0) - (x < 0))),
    "minimum": function(min),
    "maximum": function(max),
    "clip": function(lambda x, low, high: min(max(x, low), high)),
}
COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def raised(x: Approximate | None, y: Approximate | None) -> Approximate | None:
    """x ** y, whose last bits differ between implementations."""
    found = function(power)(x, y)
    if found is None or not found.finite or found.error:
        return found
    return found if found.value in (0, 1) else Approximate(found.value, 1e-14 * abs(found.value))


def total(numbers: list[Approximate]) -> Approximate:
    """The sum. It is exact if the numbers are coarse: an integer of 40 bits times one factor."""
    if not all(number.finite for number in numbers):
        return Approximate(NAN)
    values = [number.value for number in numbers]
    size = math.fsum(map(abs, values))
    if not math.isfinite(size):
        return Approximate(NAN, INF)
    step = 2.0 ** (math.frexp(size)[1] - 40)
    coarse = step == 0 or all(value % step == 0 for value in values)
    error = math.fsum(number.error for number in numbers) + (0 if coarse else 1e-14 * size)
    return Approximate(math.fsum(values), error)


def both(left: Outcome, right: Outcome) -> Outcome:
    """&: false, else what is not finite, else undefined, else true."""
    return next((x for x in (False, NOT_FINITE, None) if x in (left, right)), True)


def opposite(value: Outcome) -> Outcome:
    return not value if isinstance(value, bool) else value


def either(left: Outcome, right: Outcome) -> Outcome:
    """|."""
    return opposite(both(opposite(left), opposite(right)))


class Reference:
    """The values of expressions over one table that holds the whole update.

    Args:
        batch: the update, with advantages.
        controllers: the values of controllers, by name.
        draw: the random number of a token for `sample`: draw(seed, response id, position).
        levels: the levels of columns of one's own, by name; others have one value per token.
    """

    def __init__(
        self,
        batch: TokenBatch,
        controllers: dict[str, float] | None = None,
        draw: Callable[[int, int, int], int] | None = None,
        levels: dict[str, str] | None = None,
    ) -> None:
        self.batch, self.controllers, self.draw = batch, controllers or {}, draw
        self.levels = {name: LEVELS[level] for name, level in (levels or {}).items()}
        self.lengths: list[int] = batch.lengths.tolist()
        self.groups: list[int] = batch.groups.tolist()
        self.ids: list[int] = batch.response_ids.tolist()
        self.rollouts = self.ids if batch.rollouts is None else batch.rollouts.tolist()
        self.starts = [sum(self.lengths[:i]) for i in range(len(self.lengths))]
        rewards = batch.reward().tolist()
        self.decided = [i for i, reward in enumerate(rewards) if reward == reward]
        self._memory: dict[Hashable, Any] = {}
        self._columns: dict[str, list[float]] = {}
        self._alive: list[Expr] = []  # memory is by id()

    def numbers(self, expression: Expr) -> dict[int, Approximate | None]:
        """The number on each row of a decided response."""
        places = self.prepare(expression)
        return {self.row(place): self.number(expression, place) for place in places}

    def rule(self, expression: Expr) -> dict[int, Outcome]:
        """The outcome of the rule on each row of a decided response."""
        places = self.prepare(expression)
        return {self.row(place): self.outcome(expression, place) for place in places}

    def prepare(self, expression: Expr) -> list[Place]:
        """Evaluate all populations, also those that `when` does not read."""
        self._alive.append(expression)
        places = self.tokens(self.decided)
        for node in expression.walk():
            read = [*places, *(self.places(Level.TURN) if node.level < Level.TOKEN else [])]
            read += self.wholes if node.level < Level.TURN else []
            read += self.places(Level.ROLLOUT) if node.level < Level.RESPONSE else []
            if type(node).__name__ == "Scan":
                self.values(node.value, self.places(node.level))
                self.decays(node)
            elif type(node).__name__ in ("Aggregate", "Quantile", "Rank"):
                [self.number(node, place) for place in read]
            elif type(node).__name__ in ("Quantified", "Cut", "MeanCut", "Sample"):
                [self.outcome(node, place) for place in read]
        return places

    # Places.

    def row(self, place: Place) -> int:
        assert place[1] is not None
        return self.starts[place[0]] + place[1]

    def tokens(self, responses: Iterable[int]) -> list[Place]:
        return [(i, t) for i in responses for t in range(self.lengths[i])]

    @property
    def wholes(self) -> list[Place]:
        """The decided responses, also those without tokens."""
        return [(i, None) for i in self.decided]

    def rows(self, place: Place) -> list[int]:
        """The rows of the rollout that a place lies in."""
        name = self.rollouts[place[0]]
        return [i for i, other in enumerate(self.rollouts) if other == name]

    def unit(self, by: str, place: Place) -> Hashable:
        """The name of the population that a place belongs to; None if it belongs to none."""
        group = self.groups[place[0]]
        if by in self.levels:
            value = self.own(by, place)
            return (group, value) if value >= 0 else None
        names = {"update": 0, "group": group, "position": (group, place[1]), "response": place[0]}
        names["rollout"] = self.rollouts[place[0]]
        if by in ("turn", "group_turn"):
            turn = self.lift(place, Level.TURN)
            return turn if by == "turn" else (group, turn[1])
        return names[by]

    def lift(self, place: Place, level: Level) -> Place:
        """The turn, the response or the rollout that a place lies in."""
        if level == Level.ROLLOUT:
            return self.rows(place)[0], ROLLOUT
        if level == Level.TURN and isinstance(place[1], int):
            return place[0], ("turn", self.listed("turn")[self.row(place)])
        return (place[0], None) if level == Level.RESPONSE else place

    def places(self, level: Level) -> list[Place]:
        """All decided tokens, turns with tokens, responses or rollouts."""
        if level == Level.ROLLOUT:
            return list(dict.fromkeys(self.lift(place, level) for place in self.wholes))
        tokens = self.tokens(self.decided)
        if level == Level.RESPONSE:
            return self.wholes
        return list(dict.fromkeys(self.lift(place, level) for place in tokens))

    def counted(self, node: Any, level: Level) -> Level:
        """What a population has: the finer one of a level and of that of `by`."""
        return max(level, self.levels.get(str(node.by)) or OF_UNIT.get(str(node.by), Level.ROLLOUT))

    def ranked(self, node: Any) -> Level:
        """What a cut or a quantile ranks."""
        return self.counted(node, node.value.level if node.of == "response" else LEVELS[node.of])

    def own(self, name: str, place: Place) -> float:
        """A column of one's own, which has one value for each token, turn or response."""
        whole = self.lift(place, self.levels[name])
        if name in self.batch.response_columns:
            return self.listed(name)[whole[0]]
        tokens = [x for x in self.tokens([place[0]]) if self.lift(x, self.levels[name]) == whole]
        return self.listed(name)[self.row(tokens[0])]

    def members(self, node: Any, level: Level, unit: Hashable) -> list[Place]:
        """Decided tokens, turns or responses of a unit that are in `within`."""
        level = self.counted(node, level)
        places = [place for place in self.places(level) if self.unit(str(node.by), place) == unit]
        places = places if unit is not None else []
        return [place for place in places if self.inside(node.within, place)]

    def inside(self, within: Expr | None, place: Place) -> bool:
        """Whether a token is in `within`, or a turn or response: with one token, or as a whole."""
        if within is None:
            return True
        if place[1] == ROLLOUT and within.level > Level.ROLLOUT:
            return any([self.inside(within, (i, None)) for i in self.rows(place)])  # noqa: C419
        level = Level.RESPONSE if place[1] is None else Level.TURN
        if place[1] != ROLLOUT and not isinstance(place[1], int) and within.level > level:
            tokens = [x for x in self.tokens([place[0]]) if self.lift(x, level) == place]
            held = [self.inside(within, token) for token in tokens]  # evaluates all of them
            return any(held)
        return self.known(within, place) is True

    def known(self, rule: Expr, place: Place) -> bool | None:
        outcome = self.outcome(rule, place)
        if isinstance(outcome, str):
            raise NotFinite
        return outcome

    def values(self, number: Expr, places: list[Place]) -> dict[Place, Approximate]:
        """The numbers at those places of a population where they are defined."""
        found = {place: self.number(number, place) for place in places}
        defined = {place: value for place, value in found.items() if value is not None}
        if not all(value.finite for value in defined.values()):
            raise NotFinite
        return defined

    def remember(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        if key not in self._memory:
            self._memory[key] = compute()
        return self._memory[key]

    # Numbers.

    def number(self, node: Any, place: Place) -> Approximate | None:
        """The number at a place."""
        return self.remember((id(node), place), lambda: self._number(node, place))

    def _number(self, node: Any, place: Place) -> Approximate | None:
        match type(node).__name__:
            case "Constant":
                return Approximate(float(node.value))
            case "Controlled":
                return Approximate(float(self.controllers[node.name]))
            case "Column":
                return self.column(node.name, place)
            case "NamedNumber":
                return self.number(node.value, place)
            case "NamedReward":
                return Approximate(float(self.batch.reward(node.name)[place[0]]))
            case "Arithmetic" if node.operator == "**":
                return raised(self.number(node.left, place), self.number(node.right, place))
            case "Arithmetic":
                sides = self.number(node.left, place), self.number(node.right, place)
                return FUNCTIONS[node.operator](*sides)
            case "Negative":
                return FUNCTIONS["negative"](self.number(node.operand, place))
            case "Function":
                values = [self.number(argument, place) for argument in node.arguments]
                return FUNCTIONS[node.name](*values)
            case "When":
                chosen = self.outcome(node.rule, place)
                if chosen == NOT_FINITE:
                    return Approximate(NAN)
                return self.number(node.then if chosen is True else node.otherwise, place)
            case "Aggregate":
                return self.of_unit(self.aggregate, node, place)
            case "Quantile":
                return self.of_unit(self.quantile, node, place)
            case "Rank":
                return self.rank(node, place)
            case "Scan":
                return self.scan(node, place)
        raise AssertionError(f"no reference for {node}")

    def of_unit(self, compute: Callable[[Any, Hashable], Any], node: Any, place: Place) -> Any:
        unit = self.unit(str(node.by), place)
        return self.remember((id(node), "unit", unit), lambda: compute(node, unit))

    def column(self, name: str, place: Place) -> Approximate:
        i, t = place
        if name in self.levels:
            return Approximate(float(self.own(name, place)))
        if name == "reward":
            return Approximate(float(self.batch.reward()[i]))
        if name == "length":
            return Approximate(sum(self.lengths[row] for row in self.rows(place)))
        if name == "rollout_rows":
            return Approximate(len(self.rows(place)))
        if name == "position":
            assert isinstance(t, int)
            return Approximate(t)
        if name.startswith("turn"):
            turn = self.lift(place, Level.TURN)
            own = [x for x in self.tokens([i]) if self.lift(x, Level.TURN) == turn]
            reward = self.listed("turn_reward")[self.row(own[0])]
            values = {"turn": turn[1][1], "turn_reward": reward}
            return Approximate(values[name] if name in values else t - own[0][1])
        if name == "covariance":
            advantage = FUNCTIONS["-"](self.column("advantage", place), self.means["advantages"])
            logprob = FUNCTIONS["-"](self.column("logprob", place), self.means["logprobs"])
            found = FUNCTIONS["*"](advantage, logprob)
            assert found is not None
            return found
        return Approximate(self.direct(name, self.row(place)))

    def direct(self, name: str, row: int) -> float:
        """A column that depends on its own row alone."""
        read = lambda column: self.listed(column)[row]  # noqa: E731
        exp, sqrt = by_torch("exp"), by_torch("sqrt")
        match name:
            case "prob":
                return exp(read("logprobs"))
            case "logprob":
                return read("logprobs")
            case "surprisal":
                return -read("logprobs")
            case "old_prob":
                return exp(read("old_logprobs"))
            case "old_logprob":
                return read("old_logprobs")
            case "old_surprisal":
                return -read("old_logprobs")
            case "advantage":
                return read("advantages")
            case "ratio":
                return exp(read("logprobs") - read("old_logprobs"))
            case "reference_logprob":
                return read("ref_logprobs")
            case "reference_prob":
                return exp(read("ref_logprobs"))
            case "ref_gap" | "reference_gap":
                return read("ref_logprobs") - read("logprobs")
            case "proxy_gap":
                return read("proxy_logprobs") - read("logprobs")
            case "sampler_gap":
                sampler = read("sampler_logprobs")
                return 0.0 if math.isnan(sampler) else read("old_logprobs") - sampler
            case "gradient_norm":
                squared = 1 - 2 * exp(read("logprobs")) + read("collision")
                return abs(read("advantages")) * sqrt(max(squared, 0.0))
        return read(name)  # entropy, old_entropy, collision and columns of one's own

    def listed(self, name: str) -> list[float]:
        if name == "staleness" and name not in self._columns:
            versions = self.batch.versions.tolist()
            newest = max(versions[self.row(place)] for place in self.tokens(self.decided))
            self._columns[name] = [newest - version for version in versions]
        if name not in self._columns:
            column = self.batch.columns.get(name, getattr(self.batch, name, None))
            self._columns[name] = column.tolist()
        return self._columns[name]

    @cached_property
    def means(self) -> dict[str, Approximate]:
        """Means over the update, for the covariance."""
        rows = [self.row(place) for place in self.tokens(self.decided)]
        found = {}
        for name in ("advantages", "logprobs"):
            value = total([Approximate(self.listed(name)[row]) for row in rows])
            found[name] = FUNCTIONS["/"](value, Approximate(len(rows)))
        return found  # type: ignore[return-value]

    def aggregate(self, node: Any, unit: Hashable) -> Approximate | None:
        members = self.members(node, node.value.level, unit)
        if node.method in ("count", "share"):
            outcomes = [self.known(node.value, place) for place in members]
            outcomes = [outcome for outcome in outcomes if outcome is not None]
            held, size = Approximate(sum(outcomes)), Approximate(len(outcomes))
            if node.method == "count":
                return held
            return FUNCTIONS["/"](held, size) if outcomes else None
        numbers = list(self.values(node.value, members).values())
        if node.method == "sum":
            return total(numbers)
        if not numbers:
            return None
        if node.method == "mean":
            return FUNCTIONS["/"](total(numbers), Approximate(len(numbers)))
        if node.method == "std":
            return self.deviation(numbers)
        best = (min if node.method == "min" else max)(numbers)
        return Approximate(best.value, max(number.error for number in numbers))

    def deviation(self, numbers: list[Approximate]) -> Approximate:
        """The unbiased standard deviation; an error of the numbers is less than twice as large."""
        values = [number.value for number in numbers]
        low, span = min(values), max(values) - min(values)
        if not span or not math.isfinite(span):
            return Approximate(0.0 * span, 2 * max(number.error for number in numbers))
        places = [(value - low) / span for value in values]
        mean = math.fsum(places) / len(places)
        squares = math.fsum((place - mean) ** 2 for place in places)
        error = 2 * max(number.error for number in numbers) + 1e-14 * span
        return Approximate(span * math.sqrt(squares / (len(places) - 1)), error)

    def quantile(self, node: Any, unit: Hashable) -> Approximate | None:
        numbers = self.values(node.value, self.members(node, self.ranked(node), unit)).values()
        if not numbers:
            return None
        error, ranked = max(number.error for number in numbers), sorted(numbers)
        if node.interpolate:
            return self.interpolated(Fraction(str(node.q)), [x.value for x in ranked], error)
        best = ranked[max(rounded_share(node.q, len(numbers), "ceil"), 1) - 1]
        return Approximate(best.value, error)

    def interpolated(self, q: Fraction, ranked: list[float], error: float) -> Approximate:
        """The value at q·(n − 1) places above the smallest one, linear between two values."""
        place = math.floor(q * (len(ranked) - 1))
        below, above = ranked[place], ranked[min(place + 1, len(ranked) - 1)]
        share = float(q * (len(ranked) - 1) - place)
        rounding = 1e-14 * (abs(below) + abs(above)) if below != above else 0
        return Approximate(below + share * (above - below), error + rounding)

    def rank(self, node: Any, place: Place) -> Approximate | None:
        """(rank − 1)/(n − 1): the share of the others that are smaller; half of those that tie."""
        level = self.counted(node, node.value.level)
        place = self.lift(place, level)
        values = self.values(node.value, self.members(node, level, self.unit(str(node.by), place)))
        own = values.pop(place, None)
        if own is None or not values:
            return own and Approximate(0.5)
        for other in values.values():
            not_close(own, other)
        points = [
            1.0 if x.value < own.value else 0.5 * (x.value == own.value) for x in values.values()
        ]
        return FUNCTIONS["/"](Approximate(sum(points)), Approximate(len(values)))

    def scan(self, node: Any, place: Place) -> Approximate | None:
        place, step = self.lift(place, node.level), -1 if node.method[0] == "p" else 1
        path = list(dict.fromkeys(self.lift(x, node.level) for x in self.tokens(self.rows(place))))
        if node.level == Level.TURN:  # through all rows
            path.sort(key=lambda place: place[1][1])
        else:
            path = [x for x in path if self.unit(node.by, x) == self.unit(node.by, place)]
        value, next_one = self.number(node.value, place), path.index(place) + step
        decay = Approximate(1) if node.decay == 1 else self.decay(node, place)
        if value is None or decay is None or not 0 <= next_one < len(path):
            return None if decay is None else value
        before = self.number(node, path[next_one])
        if not node.method.endswith("sum"):
            return FUNCTIONS[f"{node.method[7:]}imum"](value, before)
        decayed = before if decay == Approximate(1) else FUNCTIONS["*"](decay, before)
        found = FUNCTIONS["+"](value, decayed)
        if found is None or not found.finite:
            return found
        size = abs(value.value) + abs(decayed.value)  # type: ignore[union-attr]
        return Approximate(found.value, found.error + 1e-15 * size)

    def decay(self, node: Any, place: Place) -> Approximate | None:
        """The decay of a sum at the place that receives it."""
        decay = node.decay
        return self.number(decay, place) if isinstance(decay, Expr) else Approximate(decay)

    def decays(self, node: Any) -> None:
        """Refuse a decay that is not in [0, 1] where it is defined."""
        if isinstance(node.decay, Expr):
            for decay in self.values(node.decay, self.places(node.level)).values():
                [not_close(decay, Approximate(bound)) for bound in (0, 1)]
                if not 0 <= decay.value <= 1:
                    raise NotFinite

    # Rules.

    def outcome(self, node: Any, place: Place) -> Outcome:
        """The outcome of a rule at a place."""
        return self.remember((id(node), place), lambda: self._outcome(node, place))

    def _outcome(self, node: Any, place: Place) -> Outcome:
        match type(node).__name__:
            case "Compare":
                sides = self.number(node.left, place), self.number(node.right, place)
                return compared(node.operator, *sides)
            case "Logic":
                sides = self.outcome(node.left, place), self.outcome(node.right, place)
                return both(*sides) if node.operator == "&" else either(*sides)
            case "NamedRule":
                return self.outcome(node.value, place)
            case "SamplerKnown":
                return not math.isnan(self.listed("sampler_logprobs")[self.row(place)])
            case "Not":
                return opposite(self.outcome(node.operand, place))
            case "Quantified":
                return self.of_unit(self.quantified, node, place)
            case "Cut":
                whole = self.lift(place, self.ranked(node))
                return self.of_unit(self.cut, node, place).get(whole, False)
            case "MeanCut":
                return self.of_unit(self.mean_cut, node, place).get(place, False)
            case "Sample":
                whole = self.lift(place, Level.ROLLOUT) if node.of == "response" else place
                return whole in self.remember((id(node), "unit"), lambda: self.sample(node))
        raise AssertionError(f"no reference for {node}")

    def quantified(self, node: Any, unit: Hashable) -> bool:
        """Any or all of the members on which the rule is defined."""
        found = [self.known(node.value, p) for p in self.members(node, node.value.level, unit)]
        return True in found if node.method == "any" else False not in found

    def cut(self, node: Any, unit: Hashable) -> dict[Place, bool | None]:
        """The outcomes of a population's members, undefined where the number is."""
        members = self.members(node, self.ranked(node), unit)
        values = self.values(node.value, members)
        k = min(
            max(rounded_share(node.fraction, len(values), node.round), node.at_least), len(values)
        )
        chosen: dict[Place, bool | None] = dict.fromkeys(members)
        if k == 0 or k < node.none_below:
            return {**chosen, **dict.fromkeys(values, False)}
        edge = sorted(values.values(), reverse=node.method == "top")[k - 1]
        for place, value in values.items():
            not_close(value, edge)
            above, below = value.value >= edge.value, value.value <= edge.value
            chosen[place] = above if node.method == "top" else below
        return chosen

    def mean_cut(self, node: Any, unit: Hashable) -> dict[Place, bool | None]:
        """The outcomes of a population's tokens: one value after another, while the mean allows."""
        members = self.members(node, Level.TOKEN, unit)
        values = self.values(node.value, members)
        ranked, edge = sorted(values.values()), -INF
        for k, value in enumerate(ranked, 1):
            if k < len(ranked):
                not_close(value, ranked[k])
                if ranked[k].value == value.value:
                    continue
            if not mean_at_most(ranked[:k], node.limit, ranked[-1].value):
                break
            edge = value.value
        chosen = {place: value.value <= edge for place, value in values.items()}
        return {**dict.fromkeys(members), **chosen}

    def sample(self, node: Any) -> set[Place]:
        """The tokens, or responses, of the rule with the smallest random numbers."""
        every = self.places(Level.ROLLOUT if node.of == "response" else Level.TOKEN)
        rule = [place for place in every if self.inside(node.value, place)]
        k = node.amount
        if type(k) is not int:
            k = rounded_share(k, len(every if node.of == "all" else rule), node.round)
        assert self.draw is not None
        draws = {
            (i, t): self.draw(
                node.seed, *((self.rollouts[i], -1) if t == ROLLOUT else (self.ids[i], t))
            )
            for i, t in rule
        }
        return set(sorted(rule, key=draws.__getitem__)[: min(max(k, node.at_least), len(rule))])


def finite(number: Approximate | None) -> bool:
    return number is None or number.finite


def not_close(left: Approximate, right: Approximate) -> None:
    """Equal numbers are equal for everybody; unequal ones must differ by more than rounding."""
    error = left.error + right.error
    if error and left.value != right.value and not abs(left.value - right.value) > error:
        raise Close


def mean_at_most(numbers: list[Approximate], limit: float, largest: float) -> bool:
    """Whether Σ x <= limit·n; beside the largest number of the population, 2^-97 of it is 0."""
    found, most = total(numbers), Fraction(limit) * len(numbers)
    if not found.finite:
        raise Close
    gap = Fraction(found.value) - most
    size = abs(found.value) + abs(float(most))
    rounding = found.error + (1e-14 * size + 2.0**-97 * abs(largest) if gap else 0)
    if rounding and abs(gap) <= rounding:
        raise Close
    return gap <= 0


def compared(comparison: str, left: Approximate | None, right: Approximate | None) -> Outcome:
    if not finite(left) or not finite(right):
        return NOT_FINITE
    if left is None or right is None:
        return None
    not_close(left, right)
    return COMPARISONS[comparison](left.value, right.value)
