"""Frame: every token of an optimizer update that this process holds, ready to be asked rules.

`Objective.plan` builds one per update. Columns are detached; rows of undecided responses are in
no population. All ranks evaluate the same expressions in the same order, because every cut and
every mean is counted over all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
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

__all__ = ["Frame", "finite_column"]

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
_DTYPES = (torch.float32, torch.float64)
_OPTIONAL = ("ref_logprobs", "sampler_logprobs", "proxy_logprobs", "collision")


class Frame:
    """All local tables of one update as one table, with the means to evaluate expressions.

    Args:
        tables: this rank's micro-batches; may be empty.
        readers: the TokenBatch columns needed, each with who reads it.
        comm: the process group.
        state: the objective's state, for controllers' values and the update's number.

    Raises:
        BatchError: on all ranks together, where a column is absent on one or not finite.
    """

    def __init__(
        self,
        tables: Sequence[TokenBatch],
        readers: Mapping[str, str],
        comm: Comm,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        self.comm = comm
        self.state = state or {}
        self.selections: dict[str, tuple[int, int]] = {}
        self._columns: dict[str, Tensor] = {}
        error = ""
        try:
            self.table = _join(tables, readers)
            for name, who in readers.items():
                self._columns[f"batch.{name}"] = self._read(name, who)
        except BatchError as exception:
            error = str(exception)
        widths = [int(bool(error)), int(_wide(tables)), int(bool(tables))]
        failed, wide, _ = comm.sum(torch.tensor(widths)).tolist()
        if failed:
            raise BatchError(
                error or "another rank holds a table that cannot be used; see its error"
            )
        self.dtype = _DTYPES[bool(wide)]
        self.device = self.table.logprobs.device
        self.valid = self.table.decided
        self._all_valid = bool(self.valid.all())

    def _read(self, name: str, who: str) -> Tensor:
        """A detached batch column, checked to be finite on rows that count."""
        if name == "rewards":  # NaN is a meaning there
            return self.table.column(name, who).detach()
        return finite_column(self.table, name, who)

    def batch(self, name: str) -> Tensor:
        """A column of the joined table in the frame's dtype, 0 on undecided rows, [N]."""
        values = self._columns[f"batch.{name}"].to(self.dtype)
        return values if self._all_valid else values.masked_fill(~self.valid, 0)

    def number(self, expression: Number) -> Tensor:
        """A number per token, [N]."""
        return self.evaluate(expression).expand(len(self.table))

    def rule(self, expression: Rule | None) -> Tensor:
        """A rule's tokens among those that count, bool [N]; None = all of them."""
        if expression is None:
            return self.valid
        return self.evaluate(expression) & self.valid

    def evaluate(self, node: Expr) -> Tensor:
        """[N], or 0-d where the expression is one number."""
        return getattr(self, f"_evaluate_{type(node).__name__}")(node)

    def _evaluate_Column(self, node: Column) -> Tensor:
        if node.name not in self._columns:
            self._columns[node.name] = getattr(self, f"_{node.name}")().to(self.dtype)
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
        k = node.size(n, statistics.count(self.valid, self.comm))
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

    # The columns of the language, by name; each as `COLUMNS` describes it.

    def _logprob(self) -> Tensor:
        return self.batch("logprobs")

    def _prob(self) -> Tensor:
        return self._logprob().exp()

    def _surprisal(self) -> Tensor:
        return -self._logprob()

    def _entropy(self) -> Tensor:
        return self.batch("entropy")

    def _old_logprob(self) -> Tensor:
        return self.batch("old_logprobs")

    def _old_prob(self) -> Tensor:
        return self._old_logprob().exp()

    def _old_surprisal(self) -> Tensor:
        return -self._old_logprob()

    def _old_entropy(self) -> Tensor:
        return self.batch("old_entropy")

    def _advantage(self) -> Tensor:
        return self.batch("advantages")

    def _reward(self) -> Tensor:
        rewards = self.table.spread(self._columns["batch.rewards"]).to(self.dtype)
        return torch.where(self.valid, rewards, torch.zeros_like(rewards))

    def _ratio(self) -> Tensor:
        return functional.log_ratio(self._logprob(), self._old_logprob()).exp()

    def _length(self) -> Tensor:
        return self.table.spread(self.table.lengths)

    def _position(self) -> Tensor:
        return self.table.positions

    def _covariance(self) -> Tensor:
        advantages, logprobs = self._advantage(), self._logprob()
        mean_advantage = statistics.exact_mean(advantages, self.valid, self.comm)
        mean_logprob = statistics.exact_mean(logprobs, self.valid, self.comm)
        return (advantages - mean_advantage) * (logprobs - mean_logprob)

    def _proxy_gap(self) -> Tensor:
        return self.batch("proxy_logprobs") - self._logprob()

    def _sampler_gap(self) -> Tensor:
        return self._old_logprob() - self.batch("sampler_logprobs")

    def _collision(self) -> Tensor:
        return self.batch("collision")

    def _gradient_norm(self) -> Tensor:
        return functional.gradient_norm(self._logprob(), self._collision(), self._advantage())


def finite_column(table: TokenBatch, name: str, who: str) -> Tensor:
    """A detached column per token, finite on the rows of decided responses, [N].

    Raises:
        BatchError: the column is absent or not finite; names it, the row and who reads it.
    """
    values = table.column(name, who).detach()
    bad = ~values.isfinite() & table.decided
    if bad.any():
        row = int(bad.nonzero()[0])
        raise BatchError(
            f"column '{name}' is {values[row].item()} at row {row} ({table.row(row)}); "
            f"{who} reads it"
        )
    return values


def _join(tables: Sequence[TokenBatch], readers: Mapping[str, str]) -> TokenBatch:
    """This rank's tables as one, without what nobody reads; empty for a rank without any."""
    if len(tables) > 1:
        unread = dict.fromkeys({*_OPTIONAL} - readers.keys())
        tables = [table.replace(**unread, mask=None) for table in tables]
    if tables:
        return TokenBatch.concat(tables)
    nothing = torch.zeros(0)
    names = {name for _, columns in COLUMNS.values() for name in columns} | {"advantages"}
    columns = dict.fromkeys(names - {"logprobs"}, nothing)
    return TokenBatch(lengths=[], groups=[], ids=[], logprobs=nothing, **columns)  # type: ignore[arg-type]


def _wide(tables: Sequence[TokenBatch]) -> bool:
    return any(table.logprobs.dtype == torch.float64 for table in tables)
