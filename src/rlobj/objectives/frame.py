"""Frame: this rank's tokens of one optimizer update, and the evaluation of rules on them.

`Objective.plan` builds one frame per update. Columns are detached. Rows of undecided responses
belong to no population. All ranks must evaluate the same expressions in the same order, because
cuts and means count the tokens of all ranks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import functional, statistics
from rlobj.objectives.rules import (
    COLUMNS,
    Column,
    Constant,
    Controlled,
    Cut,
    Expr,
    Number,
    Quantile,
    Rule,
    Sample,
    When,
)
from rlobj.objectives.rules.nodes import Arithmetic, Compare, Logic, Magnitude, Negative, Not
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch

__all__ = ["Frame"]

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "&": operator.and_,
    "|": operator.or_,
}
_OPTIONAL = ("ref_logprobs", "sampler_logprobs", "proxy_logprobs", "collision")


class Frame:
    """This rank's tables of one update, joined, with the values of expressions on their rows.

    Args:
        tables: this rank's micro-batches; may be empty.
        columns: the TokenBatch columns to read, each with what reads it.
        comm: the process group.
        state: the objective's state: the controllers' values and the number of the update.

    Attributes:
        table: the joined table.
        decided: bool [N], rows of decided responses.
        selections: for each evaluated cut, by its text: selected tokens and population.

    Raises:
        BatchError: a column is absent or not finite on some rank; raised on all ranks.
    """

    def __init__(
        self,
        tables: Sequence[TokenBatch],
        columns: Mapping[str, str],
        comm: Comm,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.comm = comm
        self.state = state or {}
        self.selections: dict[str, tuple[int, int]] = {}
        self._batch: dict[str, Tensor] = {}  # columns of the TokenBatch
        self._columns: dict[str, Tensor] = {}  # columns of rules
        error = ""
        try:
            self.table = _join(tables, columns)
            for name, who in columns.items():
                self._batch[name] = self._read(name, who)
        except BatchError as exception:
            error = str(exception)
        double = any(table.logprobs.dtype == torch.float64 for table in tables)
        failed, double = comm.sum(torch.tensor([int(bool(error)), int(double)])).tolist()
        if failed:
            raise BatchError(
                error or "another rank holds a table that cannot be used; see its error"
            )
        self.dtype = torch.float64 if double else torch.float32
        self.device = self.table.logprobs.device
        self.decided = self.table.decided
        self._all_decided = bool(self.decided.all())

    def _read(self, name: str, who: str) -> Tensor:
        """A TokenBatch column, detached, finite on rows of decided responses, [N]."""
        if name == "rewards":  # [B]; NaN means undecided
            self.table.column(name, who)
            return self.table.spread(self.table.reward().detach())
        return self.table.finite(name, who)

    def batch(self, name: str) -> Tensor:
        """A TokenBatch column in the frame's dtype, 0 on rows of undecided responses, [N]."""
        values = self._batch[name].to(self.dtype)
        return values if self._all_decided else values.masked_fill(~self.decided, 0)

    def number(self, expression: Number) -> Tensor:
        """The value of a number on each token, [N]."""
        return self.evaluate(expression).expand(len(self.table))

    def rule(self, expression: Rule | None) -> Tensor:
        """The tokens of decided responses that a rule selects, bool [N]; None selects all."""
        if expression is None:
            return self.decided
        return self.evaluate(expression) & self.decided

    def evaluate(self, node: Expr) -> Tensor:
        """The value of an expression, [N]; 0-d if it is the same for all tokens."""
        return getattr(self, f"_evaluate_{type(node).__name__}")(node)

    def _evaluate_Column(self, node: Column) -> Tensor:
        if node.name not in self._columns:
            self._columns[node.name] = _VALUES[node.name](self).to(self.dtype)
        return self._columns[node.name]

    def _evaluate_Constant(self, node: Constant) -> Tensor:
        return torch.tensor(node.value, dtype=self.dtype, device=self.device)

    def _evaluate_Controlled(self, node: Controlled) -> Tensor:
        return torch.tensor(self.state[node.name]["value"], dtype=self.dtype, device=self.device)

    def _evaluate_Arithmetic(self, node: Arithmetic | Compare | Logic) -> Tensor:
        return _OPERATORS[node.operator](self.evaluate(node.left), self.evaluate(node.right))

    _evaluate_Compare = _evaluate_Logic = _evaluate_Arithmetic

    def _evaluate_Negative(self, node: Negative) -> Tensor:
        return -self.evaluate(node.operand)

    def _evaluate_Magnitude(self, node: Magnitude) -> Tensor:
        return self.evaluate(node.operand).abs()

    def _evaluate_Not(self, node: Not) -> Tensor:
        return ~self.evaluate(node.operand)

    def _evaluate_When(self, node: When) -> Tensor:
        return torch.where(
            self.evaluate(node.rule), self.evaluate(node.then), self.evaluate(node.otherwise)
        )

    def _evaluate_Cut(self, node: Cut) -> Tensor:
        keys, population, n = self._population(node.value, node.within)
        k = node.size(n)
        if k == 0:
            selected = torch.zeros_like(population)
        elif node.side == "bottom":
            cut = statistics.kth_smallest(keys, k, self.comm, population)
            selected = population & (keys <= cut)
        else:
            cut = statistics.kth_smallest(keys, n - k + 1, self.comm, population)
            selected = population & (keys >= cut)
        self.selections[str(node)] = (statistics.count(selected, self.comm), n)
        return selected

    def _evaluate_Quantile(self, node: Quantile) -> Tensor:
        keys, population, n = self._population(node.value, node.within)
        if n == 0:
            return torch.tensor(torch.nan, dtype=self.dtype, device=self.device)
        k = max(Cut("bottom", node.value, node.q).size(n), 1)
        key = statistics.kth_smallest(keys, k, self.comm, population)
        return statistics.from_keys(key, self.dtype).to(self.device)

    def _evaluate_Sample(self, node: Sample) -> Tensor:
        candidates = self.rule(node.rule)
        n = statistics.count(candidates, self.comm)
        k = node.size(n, statistics.count(self.decided, self.comm))
        table = self.table
        absent = self.comm.sum(torch.tensor(int(table.ids is None)))
        if int(absent) and self.comm.size > 1:
            raise BatchError(
                f"'{node}' on several ranks needs TokenBatch(ids=...), unique over all"
            )
        ids = torch.arange(len(table.lengths)) if table.ids is None else table.ids
        rows = table.spread(ids.to(self.device))
        keys = statistics.hash_keys((node.seed, self.state.get("update", 0), rows, table.positions))
        if k == 0:
            selected = torch.zeros_like(candidates)
        else:
            cut = statistics.kth_smallest(keys, k, self.comm, candidates)
            selected = candidates & (keys <= cut)
        self.selections[str(node)] = (statistics.count(selected, self.comm), n)
        return selected

    def _population(self, value: Number, within: Rule | None) -> tuple[Tensor, Tensor, int]:
        values = self.number(value)
        population = self.rule(within) & ~values.isnan()
        return statistics.order_keys(values), population, statistics.count(population, self.comm)


def _covariance(frame: Frame) -> Tensor:
    advantages, logprobs = frame.batch("advantages"), frame.batch("logprobs")
    mean_advantage = statistics.exact_mean(advantages, frame.decided, frame.comm)
    mean_logprob = statistics.exact_mean(logprobs, frame.decided, frame.comm)
    return (advantages - mean_advantage) * (logprobs - mean_logprob)


_VALUES: dict[str, Callable[[Frame], Tensor]] = {
    "logprob": lambda frame: frame.batch("logprobs"),
    "prob": lambda frame: frame.batch("logprobs").exp(),
    "surprisal": lambda frame: -frame.batch("logprobs"),
    "entropy": lambda frame: frame.batch("entropy"),
    "old_logprob": lambda frame: frame.batch("old_logprobs"),
    "old_prob": lambda frame: frame.batch("old_logprobs").exp(),
    "old_surprisal": lambda frame: -frame.batch("old_logprobs"),
    "old_entropy": lambda frame: frame.batch("old_entropy"),
    "advantage": lambda frame: frame.batch("advantages"),
    "reward": lambda frame: frame.batch("rewards"),
    "ratio": lambda frame: functional.log_ratio(
        frame.batch("logprobs"), frame.batch("old_logprobs")
    ).exp(),
    "length": lambda frame: frame.table.spread(frame.table.lengths),
    "position": lambda frame: frame.table.positions,
    "covariance": _covariance,
    "proxy_gap": lambda frame: frame.batch("proxy_logprobs") - frame.batch("logprobs"),
    "sampler_gap": lambda frame: frame.batch("old_logprobs") - frame.batch("sampler_logprobs"),
    "collision": lambda frame: frame.batch("collision"),
    "gradient_norm": lambda frame: functional.gradient_norm(
        frame.batch("logprobs"), frame.batch("collision"), frame.batch("advantages")
    ),
}
"""The value of each column of rules on the frame's rows, [N]; COLUMNS describes them."""


def _join(tables: Sequence[TokenBatch], columns: Mapping[str, str]) -> TokenBatch:
    """This rank's tables as one table; an empty one if there are none."""
    if len(tables) > 1:
        unread = dict.fromkeys({*_OPTIONAL} - columns.keys())
        tables = [table.replace(**unread, mask=None) for table in tables]
    if tables:
        return TokenBatch.concat(tables)
    nothing = torch.zeros(0)
    names = {name for _, reads in COLUMNS.values() for name in reads} | {"advantages"}
    empty = dict.fromkeys(names - {"logprobs"}, nothing)
    return TokenBatch(lengths=[], groups=[], ids=[], logprobs=nothing, **empty)  # type: ignore[arg-type]
