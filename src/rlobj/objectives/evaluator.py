"""Evaluator: the values of expressions token by token; `populations` adds those of many.

Rules have three values: true, false and undefined. A number is undefined where its population is
empty (`entropy.mean(within=...)` of no token), and a comparison with it, too. As in SQL, `~` of an
undefined rule is undefined, undefined & false is false, and undefined | true is true. What is
undefined at the end selects nothing.

A result that is NaN or infinite, as 1 / 0, is undefined, too. It is an error if a weight, a
population or the decision of a rule depends on it.

All ranks must evaluate the same expressions in the same order, because populations contain the
tokens of all ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives.rules import Expr, Level, Number, Rule, nodes
from rlobj.objectives.rules.columns import FUNCTIONS
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch

EXACT_POWERS = (-2, -1, 0, 0.5, 1, 2, 3)
"""Exponents for which `torch.pow` multiplies, divides or takes a root."""


def power(base: Tensor, exponent: Tensor) -> Tensor:
    """base ** exponent, the same at each place of a tensor.

    `torch.pow` rounds the last elements of a tensor, and of a thread's share of it, in another way
    than the others, except for these exponents. exp(y·log x) is computed in float64: in float32 it
    is wrong by several units of the last place, so that 10 ** 4 is not 10000.
    """
    if exponent.dim() == 0 and float(exponent) in EXACT_POWERS:
        return base.pow(float(exponent))
    wide = (exponent * base.double().abs().log()).exp().to(base.dtype)
    size = torch.where(exponent == 0, 1.0, wide)
    odd = torch.where(exponent.remainder(2) == 1, -size, size)
    negative = torch.where(exponent.remainder(1) == 0, odd, torch.nan)
    return torch.where(base < 0, negative, size)


def _of_torch(name: str) -> Callable[..., Tensor]:
    """The function of torch with this name, which is looked up when it is called."""
    return lambda *arguments: getattr(torch, name)(*arguments)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": power,
    **{name: _of_torch(name) for name in FUNCTIONS if name != "when"},
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Values:
    """The values of an expression: [N], [T], [B] or 0-d by its level.

    Attributes:
        data: numbers, or true and false.
        undefined: where the data mean nothing; a rule's data are False there. None = nowhere.
        wrong: where they are undefined because a number is NaN or infinite. None = nowhere.
    """

    data: Tensor
    undefined: Tensor | None = None
    wrong: Tensor | None = None

    def __invert__(self) -> Values:
        if self.undefined is None:
            return Values(~self.data)
        return Values(~self.data & ~self.undefined, self.undefined, self.wrong)

    def __or__(self, other: Values) -> Values:
        data = self.data | other.data
        masks = _joined(self.undefined, other.undefined), _joined(self.wrong, other.wrong)
        return Values(data, *(None if mask is None else mask & ~data for mask in masks))


class Evaluator:
    """Evaluates expressions on the rows of a table; a subclass reads the columns.

    Attributes:
        table: this rank's tokens of the update, one table.
        comm: the process group.
        state: the controllers' values and the number of the update.
        dtype: of all numbers.
        decided: bool [N], rows of decided responses.
        decided_responses: bool [B].
    """

    table: TokenBatch
    comm: Comm
    state: Mapping[str, Any]
    dtype: torch.dtype
    decided: Tensor
    decided_responses: Tensor

    def __init__(self) -> None:
        self._error = ""
        self._not_finite: dict[Expr, Tensor] = {}

    @property
    def sampler_known(self) -> Tensor:
        """Where the sampler's log-probs are known, bool [N]."""
        raise NotImplementedError

    def whole_numbers(self, name: str, level: Level) -> Tensor:
        """A column of whole numbers for each token, turn or response, int64."""
        raise NotImplementedError

    def read(self, node: nodes.Column | nodes.NamedReward) -> Values:
        """The values of a column on each row [N], turn [T] or response [B]."""
        raise NotImplementedError

    def number(self, expression: Number, who: str = "", where: Tensor | None = None) -> Tensor:
        """The value of a number on each token, [N]; 0 where it is undefined.

        Args:
            expression: the number.
            who: the field that reads it; `check` then refuses rows on which it is undefined.
            where: the rows that are checked, bool [N]; None = those of decided responses.
        """
        values = self._at(expression, Level.TOKEN)
        data = values.data.expand(len(self.table))
        if values.undefined is None:
            return data
        if who:
            rows = (self.decided if where is None else where) & values.undefined
            self._check_finite(expression, values.wrong, rows)
            why = "has no value: a population is empty, or does not hold what is ranked"
            self.refuse(rows, f"{who} '{expression}' {why}")
        return data.masked_fill(values.undefined, 0)

    def rule(self, expression: Rule | None) -> Tensor:
        """The tokens of decided responses that a rule selects, bool [N]; None selects all."""
        if expression is None:
            return self.decided
        values = self._at(expression, Level.TOKEN)
        self._check_finite(expression, values.wrong, self.decided)
        return values.data & self.decided

    def holds(self, rule: Rule) -> Tensor:
        """The tokens on which a rule is true, bool [N]; unlike `rule`, it refuses nothing."""
        return self._at(rule, Level.TOKEN).data & self.decided

    def check(self) -> None:
        """Raise the first error of an expression, on all ranks together.

        Raises:
            BatchError: a weight is undefined, or a rule depends on a number that is not finite.
        """
        if int(self.comm.sum(torch.tensor(int(bool(self._error))))):
            raise BatchError(self._error or "a rule or weight has no value on another rank")

    def refuse(self, wrong: Tensor, message: str, level: Level = Level.TOKEN) -> None:
        """Keep an error for `check` if any row [N], turn [T] or response [B] is True."""
        if self._error or not bool(wrong.any()):
            return
        first = int(wrong.nonzero()[0])
        row = int(self.table.turn_starts[first]) if level == Level.TURN else first
        place = f"row {row} ({self.table.row(row)})"
        place = f"response {first}" if level == Level.RESPONSE else place
        self._error = f"{message} at {place}"

    def _check_finite(
        self, expression: Expr, wrong: Tensor | None, where: Tensor, level: Level = Level.TOKEN
    ) -> None:
        """Refuse rows that depend on a number that is NaN or infinite, and name this number.

        Args:
            expression: a rule or number.
            wrong: where it depends on such a number, 0-d or as `where`.
            where: the tokens [N], turns [T] or responses [B] that are read.
            level: which of them `where` has.
        """
        if wrong is None:
            return
        for part in expression.walk():
            if part in self._not_finite and part.level <= level:
                not_finite = self._spread(self._not_finite[part], part.level, level)
                name = f"'{part}'" if part == expression else f"'{part}' in '{expression}'"
                self.refuse(not_finite & wrong & where, f"{name} is NaN or infinite", level)

    # Levels.

    def _at(self, node: Expr, level: Level) -> Values:
        """The values of an expression for each token, turn or response, or 0-d."""
        values = self.evaluate(node)
        if node.level in (Level.UPDATE, level):
            return values

        def spread(mask: Tensor | None) -> Tensor | None:
            if mask is None:
                return None
            return self._spread(mask.expand(values.data.shape), node.level, level)

        data = self._spread(values.data, node.level, level)
        return Values(data, spread(values.undefined), spread(values.wrong))

    def _spread(self, values: Tensor, of: Level, level: Level) -> Tensor:
        """Values of responses [B] or turns [T] as those of turns or tokens; others unchanged."""
        table = self.table
        if of in (Level.UPDATE, level):
            return values
        if of == Level.TURN:
            return values[table.turns]
        return table.spread(values) if level == Level.TOKEN else values[table.of_turns]

    # Nodes.

    def evaluate(self, node: Expr) -> Values:
        """The values of an expression: [N], [T], [B] or 0-d by its level."""
        match node:
            case nodes.Column() | nodes.NamedReward():
                return self.read(node)
            case nodes.SamplerKnown():
                return Values(self.sampler_known)
            case nodes.Constant():
                return self._constant(node.value)
            case nodes.Controlled():
                return self._constant(nodes.Constant(self.state[node.name]["value"]).value)
            case nodes.Arithmetic():
                function = OPERATIONS[node.operator]
                return self._finite(node, self._combine(node, function, node.left, node.right))
            case nodes.Function():
                function = OPERATIONS[node.name]
                return self._finite(node, self._combine(node, function, *node.arguments))
            case nodes.Negative():
                return self._combine(node, torch.neg, node.operand)
            case nodes.Compare():
                compared = self._combine(node, OPERATIONS[node.operator], node.left, node.right)
                undefined = compared.undefined
                data = compared.data if undefined is None else compared.data & ~undefined
                return Values(data, undefined, compared.wrong)
            case nodes.Logic():
                left, right = self._at(node.left, node.level), self._at(node.right, node.level)
                return left | right if node.operator == "|" else ~(~left | ~right)
            case nodes.Not():
                return ~self.evaluate(node.operand)
            case nodes.When():
                return self._when(node)
        raise NotImplementedError(f"'{node}' is not evaluated here")

    def _constant(self, value: float) -> Values:
        return Values(torch.tensor(value, dtype=self.dtype, device=self.decided.device))

    def _combine(self, node: Expr, function: Callable[..., Tensor], *parts: Expr) -> Values:
        """A function of the values of some parts, undefined where one of them is."""
        values = [self._at(part, node.level) for part in parts]
        return Values(
            function(*(value.data for value in values)),
            _joined(*(value.undefined for value in values)),
            _joined(*(value.wrong for value in values)),
        )

    def _finite(self, node: Expr, values: Values) -> Values:
        """The values, undefined where they are not finite; remembers where that is."""
        if bool(values.data.sum().isfinite()):  # faster than a test of every number
            return values
        wrong = ~values.data.isfinite()
        if values.undefined is not None:
            wrong = wrong & ~values.undefined
        if not bool(wrong.any()):
            return values
        self._not_finite[node] = wrong
        return Values(values.data, _joined(values.undefined, wrong), _joined(values.wrong, wrong))

    def _when(self, node: nodes.When) -> Values:
        rule, then, other = (
            self._at(part, node.level) for part in (node.rule, node.then, node.otherwise)
        )

        def chosen(*masks: Tensor | None) -> Tensor | None:
            if all(mask is None for mask in masks):
                return None
            no = torch.zeros_like(rule.data)
            return torch.where(rule.data, *(no if mask is None else mask for mask in masks))

        wrong = _joined(rule.wrong, chosen(then.wrong, other.wrong))
        undefined = _joined(wrong, chosen(then.undefined, other.undefined))
        return Values(torch.where(rule.data, then.data, other.data), undefined, wrong)


def _joined(*masks: Tensor | None) -> Tensor | None:
    """Where any of the masks is True; None = nowhere."""
    present = [mask for mask in masks if mask is not None]
    return reduce(operator.or_, present) if present else None
