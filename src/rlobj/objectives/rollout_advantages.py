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
    rewards = [reward for reward in rewards if len(reward)]
    widths = [reward.shape[1] for reward in rewards]  # K of each table with responses
    facts = [given, len(tables) - given, int(bool(error))]
    facts += [sum(k**power for k in widths) for power in range(3)]
    facts += [sum(t.rewards is not None and t.rewards.dtype != torch.float64 for t in tables)]
    present, absent, failed, count, total, squares, single = comm.sum(torch.tensor(facts)).tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if squares * count != total * total:
        raise BatchError("the tables of the update hold different numbers of rewards")
    if present:
        return list(tables)
    nothing = torch.zeros(0, total // count if count else 1).double()
    dtype = torch.float32 if single else torch.float64
    return _filled(tables, _over_ranks(advantage, [nothing, *rewards], tables, dtype, comm))


def _over_ranks(
    advantage: Advantage,
    rewards: Sequence[Tensor],
    tables: Sequence[TokenBatch],
    dtype: torch.dtype,
    comm: Comm,
) -> Tensor:
    """A from the rewards [b, K] of all ranks, given in a dtype, from this rank's responses on."""
    empty = torch.zeros(0).long()
    lengths = torch.cat([empty, *(table.lengths.cpu() for table in tables)]).double()
    own = torch.cat([torch.cat(list(rewards)), lengths.unsqueeze(1)], 1)
    rows, start = statistics.gather(own, comm)
    names = torch.cat([empty, *(table.groups.cpu() for table in tables)])
    groups, _ = statistics.gather(names, comm)
    if not advantage.decoupled:
        return advantage(rows[:, 0].to(dtype), groups, rows[:, 1])[start:]
    weights = tables[0].reward_weights if tables else None
    return advantage(rows[:, :-1].to(dtype), groups, rows[:, -1], weights)[start:]


def _filled(tables: Sequence[TokenBatch], advantages: Tensor) -> list[TokenBatch]:
    filled = []
    for table in tables:
        size = len(table.lengths)
        own, advantages = advantages[:size], advantages[size:]
        filled.append(table.replace(advantages=own.to(table.logprobs)))
    return filled


def _rewards(table: TokenBatch, advantage: Advantage, reward_kl: float) -> Tensor:
    """All rewards of a decoupled advantage, else R − β·Σ_t (l0 − l_ref); float64 [B, K], CPU."""
    column = table.column("rewards", f"the advantage {advantage}").detach().double().cpu()
    if advantage.decoupled:
        return column if column.dim() == 2 else column.unsqueeze(1)
    rewards = table.reward().detach().double()
    if reward_kl:
        old = table.finite("old_logprobs", "reward_kl").double()
        reference = table.finite("ref_logprobs", "reward_kl").double()
        rewards = rewards - reward_kl * table.sum_by_response(old - reference)
    return rewards.cpu().unsqueeze(1)
