"""MicroBatch: a part of an update that goes through the model at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import Plan
from rlobj.objectives.tokens import TokenBatch
from rlobj.records.metrics import Measured
from rlobj.records.observed import POLICY, Observed
from rlobj.training.rollouts.sharding import MiniBatch


@dataclass(frozen=True)
class MicroBatch:
    """Some responses of a mini-batch, as `Objective.loss` reads them.

    Attributes:
        table: their tokens; log-probs and entropies carry a gradient.
        plan: the update's plan for these tokens.
        rows: its rows in the mini-batch, int [M].
        trained: False for responses without gradient, whose loss is only measured.
        last: no further micro-batch with gradient follows.
    """

    table: TokenBatch
    plan: Plan
    rows: Tensor
    trained: bool
    last: bool


def observe(
    phase: Objective,
    batch: MiniBatch,
    plan: Plan,
    state: Mapping[str, Any],
    measured: Sequence[Measured],
) -> Observed:
    """What an update read and decided: a view of tensors that it has made anyway.

    Args:
        phase: of the objective.
        batch: the mini-batch as the rules read it.
        plan: of the update.
        state: the objective's, after the plan.
        measured: of the update's micro-batches on this rank.
    """
    before = {**state, "update": state["update"] - 1}
    if batch.current:
        columns = {name: getattr(batch.table, name).detach() for name in POLICY}
    else:
        nowhere = torch.full_like(batch.table.logprobs, torch.nan)
        rows = torch.cat([each.rows for each in measured])
        columns = {
            name: nowhere.index_copy(0, rows, torch.cat([each.scores[name] for each in measured]))
            for name in POLICY
        }
    return Observed(phase, before, batch.table, plan, batch.sequences, **columns)
