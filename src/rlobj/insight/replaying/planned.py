"""Objectives planned again on full tables: weights and gradients of every token, exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, get_args

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import functional
from rlobj.objectives.frame import Frame
from rlobj.objectives.needs import rule_columns
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.rules import Rule
from rlobj.objectives.statistics import SingleProcess
from rlobj.objectives.tokens import TokenBatch
from rlobj.records.schema import Effect
from rlobj.records.tables import UpdateTable

EFFECTS: tuple[str, ...] = get_args(Effect)
State = Mapping[str, Any]
Phase = tuple[Objective, TokenBatch, State]
_PENALTY = "train with --set 'objective.penalties=[{{kind: {}, coefficient: 0}}]' to record it"
_RECORDING = {
    "ref_logprobs": _PENALTY.format("kl"),
    "proxy_logprobs": _PENALTY.format("proxy_kl"),
}
"""What to type so that a run records a column, without an effect on its weights."""

UNSCORED = (
    "the run did not score all tokens; train with --set training.skip_inactive=false to score "
    "those without a gradient, too"
)
MiniBatch = Sequence[UpdateTable]
"""The recorded updates on the same responses: one for each phase of the objective."""


def rollouts(updates: Iterable[UpdateTable]) -> Iterator[tuple[int, list[MiniBatch]]]:
    """The recorded updates of each step, by their mini-batches."""
    for step, found in groupby(updates, lambda update: update.step):
        batches: dict[Any, list[UpdateTable]] = {}
        for update in found:
            ids = update.table.ids
            key = update.update if ids is None else tuple(ids.tolist())
            batches.setdefault(key, []).append(update)
        yield step, list(batches.values())


@dataclass(frozen=True)
class Planned:
    """What an objective does to the tokens of a mini-batch, in all of its phases.

    Attributes:
        weights: m·ω/Z_t, [N].
        gradient: −∂loss/∂l · sqrt(1 − 2π + Σ π²), [N]: its size is the norm of the gradient by the
            logits; it is positive if the update makes the token more likely.
        free: the norm for the objective without its `drop` and `keep`, [N].
        effects: the touched tokens by effect, bool [N].
        equal: tokens of decided responses that have the recorded weights, to the bit.
    """

    weights: Tensor
    gradient: Tensor
    free: Tensor
    effects: dict[str, Tensor]
    equal: int

    @property
    def touched(self) -> Tensor:
        """The tokens with any effect, bool [N]."""
        return torch.stack(list(self.effects.values())).any(0)

    def only(self, rows: Tensor) -> Planned:
        """The same of some tokens, bool [N]."""
        effects = {name: mask[rows] for name, mask in self.effects.items()}
        parts = (self.weights, self.gradient, self.free)
        return Planned(*(each[rows] for each in parts), effects, self.equal)


def recorded_phases(batch: MiniBatch) -> list[Phase]:
    """The recorded objective, with its state."""
    return [(each.objective, each.table, each.state) for each in batch]


def plan_again(phases: Sequence[Phase], batch: MiniBatch) -> Planned:
    """Plan each phase of an objective on its table, with its state.

    Raises:
        BatchError: a table lacks a column, or a number is not finite.
    """
    table = batch[0].table
    weights, gradient, free = (torch.zeros_like(table.logprobs) for _ in range(3))
    effects = {name: torch.zeros_like(table.decided) for name in EFFECTS}
    same = table.decided
    for (objective, tokens, state), recorded in zip(phases, cycle_to(batch, phases), strict=True):
        plan = objective.plan([tokens], state, clauses=True)
        assert plan.clauses is not None
        signed = token_gradient(objective, tokens, plan)
        every = objective.replace(drop=None, keep=None)
        whole = signed
        if every != objective:
            whole = token_gradient(every, tokens, every.plan([tokens], state))
        weights, gradient, free = weights + plan.weights[0], gradient + signed, free + whole
        effects = {name: mask | plan.clauses.touched(name) for name, mask in effects.items()}
        same = same & (plan.weights[0] == recorded.weights)
    return Planned(weights, gradient, free.abs(), effects, int(same.sum()))


def cycle_to(batch: MiniBatch, phases: Sequence[Any]) -> list[UpdateTable]:
    """The recorded update of each phase; further phases have the last one."""
    return [batch[min(i, len(batch) - 1)] for i in range(len(phases))]


def token_gradient(objective: Objective, table: TokenBatch, plan: Plan) -> Tensor:
    """−∂loss/∂l · sqrt(1 − 2π + Σ π²) of each token, [N]; NaN if it was not scored.

    What reaches the policy through its entropy, as an entropy bonus does, is not in it.
    """
    logprobs = table.logprobs.detach().clone().requires_grad_()
    with torch.enable_grad():
        loss = objective.loss(table.replace(logprobs=logprobs), plan, 0, check=False).loss
        [slope] = torch.autograd.grad(loss, [logprobs], allow_unused=True)
    trained = table.spread(objective.responses_with_gradient(table, plan, 0)) & table.decided
    slope = torch.zeros_like(logprobs) if slope is None else torch.where(trained, slope, 0.0)
    if table.collision is None:
        return torch.where(slope == 0, 0.0, torch.nan)
    norm = functional.gradient_norm(table.logprobs.detach(), table.collision, slope)
    return torch.where(slope == 0, 0.0, -slope.sign() * norm)


class Replayed:
    """An objective besides the recorded one, from one recorded rollout to the next.

    Its controllers begin at their start values, and see the recorded rollouts only; those of the
    recorded objective, if it has the same ones, keep the recorded values.

    Args:
        objective: resolved.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.state = objective.init()

    def phases(self, batches: Sequence[MiniBatch]) -> list[list[Phase]]:
        """The phases of each mini-batch of a rollout, on tables with the objective's advantages.

        Raises:
            BatchError: the tables lack rewards, or columns that the controllers read.
        """
        recorded = batches[0][0]
        parts = self.objective.phases
        chosen = [cycle_to(batch, parts) for batch in batches]
        columns = [
            self.objective.with_advantages(
                [updates[i].table.replace(advantages=None) for updates in chosen]
            )
            for i in range(len(parts))
        ]
        if self.objective.controllers == recorded.objective.controllers:
            self.state = dict(recorded.state)
        else:
            self.state = self.objective.observe(columns[0], self.state)
        return [
            [
                (part, columns[i][n], {**self.state, "update": updates[i].state.get("update", 0)})
                for i, part in enumerate(parts)
            ]
            for n, updates in enumerate(chosen)
        ]


def select(rule: Rule, table: TokenBatch, state: State, frames: dict[str, Frame]) -> Tensor:
    """The tokens that a rule selects, bool [N].

    Args:
        rule: of the rule language.
        table: with the recorded advantages.
        state: of the recorded objective.
        frames: keeps what rules with the same columns have read.

    Raises:
        BatchError: the table lacks a column, or the rule depends on a number that is not finite.
    """
    columns = rule_columns([("rule", rule)], None)
    key = " ".join(sorted(columns))
    frame = frames.pop(key, None) or Frame([table], columns, SingleProcess(), state)
    chosen = frame.rule(rule)
    frame.check()
    frames[key] = frame  # only if the rule left no error in it
    return chosen


def reason(error: BatchError, reads: Iterable[str], table: TokenBatch) -> str:
    """Why something cannot be replayed on a table, and what to type so that a run records it.

    Args:
        error: of the plan.
        reads: the columns that it reads.
        table: of the first mini-batch.
    """
    for name in reads:
        if name in _RECORDING and getattr(table, name) is None:
            return f"the run did not record {name}; {_RECORDING[name]}"
    if bool((table.logprobs.isnan() & table.decided).any()):
        return UNSCORED
    return str(error)
