"""Advantages of a rollout, computed from the rewards of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import statistics
from rlobj.objectives.advantages import Advantage
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch

__all__ = ["rollout_advantages"]


def rollout_advantages(
    advantage: Advantage, reward_kl: float, tables: Sequence[TokenBatch], comm: Comm
) -> list[TokenBatch]:
    """The tables with the column `advantages`; see `Objective.with_advantages`.

    Args:
        advantage: A.
        reward_kl: β of the KL term that is subtracted from each response's reward.
        tables: this rank's tables.
        comm: the process group.
    """
    given = sum(table.advantages is not None for table in tables)
    rewards, error = [], ""
    try:
        rewards = [] if given else [_rewards(table, advantage, reward_kl) for table in tables]
    except BatchError as exception:
        error = str(exception)
    facts = torch.tensor([given, len(tables) - given, int(bool(error))])
    present, absent, failed = comm.sum(facts).tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if present:
        return list(tables)
    return _filled(tables, _over_ranks(advantage, rewards, tables, comm))


def _over_ranks(
    advantage: Advantage, rewards: Sequence[Tensor], tables: Sequence[TokenBatch], comm: Comm
) -> Tensor:
    """A from the rewards of all ranks, beginning with this rank's responses."""
    own = [
        torch.stack([reward, table.lengths.cpu().double()], 1)
        for reward, table in zip(rewards, tables, strict=True)
    ]
    rows, start = statistics.gather(torch.cat([torch.zeros(0, 2).double(), *own]), comm)
    names = torch.cat([torch.zeros(0).long(), *(table.groups.cpu() for table in tables)])
    groups, _ = statistics.gather(names, comm)
    return advantage(rows[:, 0], groups, rows[:, 1])[start:]


def _filled(tables: Sequence[TokenBatch], advantages: Tensor) -> list[TokenBatch]:
    filled = []
    for table in tables:
        size = len(table.lengths)
        own, advantages = advantages[:size], advantages[size:]
        dtype = torch.promote_types(table.logprobs.dtype, torch.float32)
        filled.append(table.replace(advantages=own.to(table.logprobs.device, dtype)))
    return filled


def _rewards(table: TokenBatch, advantage: Advantage, reward_kl: float) -> Tensor:
    """R − β·Σ_t (l0 − l_ref), float64 [B] on the CPU."""
    table.column("rewards", f"the advantage {advantage}")
    rewards = table.reward().detach().double()
    if reward_kl:
        old = table.finite("old_logprobs", "reward_kl").double()
        reference = table.finite("ref_logprobs", "reward_kl").double()
        rewards = rewards - reward_kl * table.sum_by_response(old - reference)
    return rewards.cpu()
