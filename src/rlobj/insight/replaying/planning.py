"""Objectives planned again on full tables: weights and gradients of every token, exactly."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from rlobj.base.errors import BatchError, Message, Setting
from rlobj.objectives import functional
from rlobj.objectives.loss import terms_of
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import EFFECTS, Plan
from rlobj.objectives.settings import bind
from rlobj.objectives.tokens import TokenBatch
from rlobj.runs.loss_metrics import average
from rlobj.runs.tables import UpdateTable

MiniBatch = Sequence[UpdateTable]
"""The recorded updates on the same responses: one for each phase of the objective."""
Phase = tuple[Objective, TokenBatch, Mapping[str, Any]]
"""A phase of an objective, the table that it reads, and its state."""


def rollouts(updates: Iterable[UpdateTable]) -> Iterator[list[MiniBatch]]:
    """The recorded mini-batches of each pass over a step's rollout."""
    for _, of_step in groupby(updates, lambda update: update.step):
        passes: list[dict[Any, list[UpdateTable]]] = []
        for update in of_step:
            ids = update.table.ids
            key = update.update if ids is None else tuple(ids.tolist())
            had = [
                any(phase.objective == update.objective for phase in batches.get(key, ()))
                for batches in passes
            ]
            if all(had):  # a phase that the mini-batch has had begins the next pass
                passes.append({})
            passes[(*had, False).index(False)].setdefault(key, []).append(update)
        for batches in passes:
            yield list(batches.values())


@dataclass
class Planned:
    """What an objective does to the tokens of decided responses of a mini-batch, in all phases.

    Attributes:
        weights: m·ω/Z_t, [N].
        gradient: −∂loss/∂l · sqrt(1 − 2π + Σ π²), [N]: its size is the norm of the gradient by the
            logits; it is positive if the update makes the token more likely.
        free: the norm for the objective without its `drop` and `keep`, [N].
        effect: the place in EFFECTS of what was done, int8 [N]; −1 = the token was not touched.
        clipped: a weight, and no gradient because of the surrogate's bounds, bool [N].
        equal: the planned weight is the recorded one, to the bit, bool [N].
        of_value: metrics of the recorded V.
    """

    weights: torch.Tensor
    gradient: torch.Tensor
    free: torch.Tensor
    effect: torch.Tensor
    clipped: torch.Tensor
    equal: torch.Tensor
    of_value: Mapping[str, float] = field(default_factory=dict)


def plan_again(phases: Sequence[Phase], batch: MiniBatch) -> Planned:
    """Plan each phase of an objective on its table, with its state.

    Raises:
        BatchError: a table lacks a column, or a number is not finite.
    """
    rows = batch[0].table.decided
    zeros = torch.zeros_like(batch[0].table.logprobs)
    untouched, none = torch.full_like(rows, -1, dtype=torch.int8), torch.zeros_like(rows)
    planned, of_value = Planned(zeros, zeros, zeros, untouched, none, rows), []
    for i, (objective, table, state) in enumerate(phases):
        plan = objective.plan([table], state, clauses=True)
        every = objective.replace(drop=None, keep=None)
        gradient = whole = token_gradient(objective, table, plan)
        if every != objective:
            whole = token_gradient(every, table, every.plan([table], state))
        planned.weights = planned.weights + plan.weights[0]
        planned.gradient, planned.free = planned.gradient + gradient, planned.free + whole.abs()
        terms = terms_of(table, plan)
        above, below = bind(objective.surrogate, terms.values).clipped_sides(terms)
        planned.clipped = planned.clipped | ((above | below) & (plan.weights[0] != 0))
        of_value.append(_of_value(objective, table, plan))
        planned.equal = planned.equal & (plan.weights[0] == recorded(batch, i).weights)
        for code, name in enumerate(EFFECTS):
            planned.effect = planned.effect.masked_fill(plan.asked_clauses.touched(name), code)
    columns = [column for column in vars(planned).values() if torch.is_tensor(column)]
    return Planned(*(column[rows] for column in columns), of_value=average(of_value))


def _of_value(objective: Objective, table: TokenBatch, plan: Plan) -> dict[str, float]:
    """The metrics of the recorded V, its loss before it is trained; {} if there is none."""
    if not objective.values:
        return {}
    old, new = (f"{objective.critic}_{kind}" for kind in ("value", "new_value"))
    loss = objective.value_loss(table.with_columns({new: table.columns[old]}), plan, 0).loss
    metrics = {name: value for name, value in plan.metrics.items() if name.startswith("value/")}
    return {"value/loss": float(loss), **metrics}


def recorded(batch: MiniBatch, phase: int) -> UpdateTable:
    """The recorded update of a phase, from 0; further phases have the last one."""
    return batch[min(phase, len(batch) - 1)]


def token_gradient(objective: Objective, table: TokenBatch, plan: Plan) -> torch.Tensor:
    """−∂loss/∂l · sqrt(1 − 2π + Σ π²) of each token, [N]; NaN if it was not scored.

    What reaches the policy through its entropy, or through a divergence over the vocabulary, is not
    in it.
    """
    objective, logprobs = objective.of_policy, table.logprobs.detach().clone().requires_grad_()
    others = objective.needs.loss & objective.divergences.keys()
    moved = table.with_columns(
        {"logprobs": logprobs, **dict.fromkeys(others, torch.zeros_like(table.logprobs))}
    )
    with torch.enable_grad():
        loss = objective.loss(moved, plan, 0, check=False).loss
        [slope] = torch.autograd.grad(loss, [logprobs], materialize_grads=True)
    trained = table.spread(objective.responses_with_gradient(table, plan, 0)) & table.decided
    collision = torch.full_like(slope, torch.nan) if table.collision is None else table.collision
    norm = functional.gradient_norm(table.logprobs.detach(), collision, slope)
    return torch.where(trained & (slope != 0), -slope.sign() * norm, 0.0)


class Replayed:
    """An objective besides the recorded one, from one recorded rollout to the next.

    Its controllers begin at their start values, and see the recorded rollouts only; those of the
    recorded objective, if it has the same ones, keep the recorded values.

    Args:
        objective: resolved.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective, self.state, self._step = objective, objective.init(), 0

    def phases(self, batches: Sequence[MiniBatch]) -> list[list[Phase]]:
        """The phases of each mini-batch of a pass, on tables with the objective's advantages.

        If no rewards were recorded, these are the recorded advantages.

        Raises:
            BatchError: the tables lack rewards, or columns that the controllers read.
        """
        phases_of: list[list[Phase]] = [[] for _ in batches]
        first = batches[0][0]
        for i, part in enumerate(self.objective.phases):
            updates = [recorded(batch, i) for batch in batches]
            tables = [update.table for update in updates]
            if all(table.rewards is not None for table in tables):
                tables = [table.replace(advantages=None) for table in tables]
            tables = self.objective.with_advantages(tables)
            if i == 0 and self.objective.controllers == first.objective.controllers:
                self.state = dict(first.state)
            elif i == 0 and self._step != first.step:  # a further pass is no further rollout
                self.state = self.objective.observe(tables, self.state)
            self._step = first.step
            for phases, table, update in zip(phases_of, tables, updates, strict=True):
                number = update.state.get("update", 0)
                phases.append((part, table, {**self.state, "update": number}))
        return phases_of


UNSCORED = Message(
    "the run did not score all tokens; use ", Setting("training.skip_inactive", False)
)
UNKNOWN = "its trainer does not compute the column collision; `rlobj train` does"
"""Why the gradients of a run in another trainer are unknown."""


def reason(
    error: BatchError, table: TokenBatch, reads: Iterable[str], critic: str | None = None
) -> Message:
    """Why something cannot be replayed on a table, and what to type so that a run records it.

    Args:
        error: of the plan.
        table: of the first mini-batch.
        reads: the columns that it reads.
        critic: the value that it reads.
    """
    settings = {
        "ref_logprobs": ("objective.penalties", "[{kind: kl, coefficient: 0}]"),
        "proxy_logprobs": ("objective.penalties", "[{kind: proxy_kl, coefficient: 0}]"),
        f"{critic}_value": ("objective.advantage", f"{{kind: gae, value: {critic}}}"),
        f"{critic}_bootstrap": ("objective.advantage.truncated", "bootstrap"),
    }
    for column, setting in settings.items():
        if column in reads and table.columns.get(column, getattr(table, column, None)) is None:
            return Message(f"the run did not record {column}; use ", Setting(*setting))
    for column in reads:
        score = column.removesuffix("_logprob")
        if score != column and column not in table.columns:
            model = Setting(f"scores.{score}.model", "MODEL")
            return Message(f"the run has no score '{score}'; use ", model)
    gaps = unscored(table)
    if gaps and gaps == len(table):
        return Message("no log-probs were recorded: ", error)
    return UNSCORED if gaps else error.message


def unscored(table: TokenBatch) -> int:
    """The number of tokens of decided responses without a log-prob."""
    return int((table.logprobs.isnan() & table.decided).sum())
