"""The column `advantages` of a rollout's tables, from the rewards of all ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import statistics
from rlobj.objectives.advantages import Advantage
from rlobj.objectives.penalties import RewardKL
from rlobj.objectives.rewards import check_sign
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch


def rollout_advantages(
    advantage: Advantage, reward_kl: RewardKL, tables: Sequence[TokenBatch], comm: Comm
) -> list[TokenBatch]:
    """The tables with the column `advantages`; see `Objective.with_advantages`.

    Args:
        advantage: A.
        reward_kl: what is subtracted from each response's reward.
        tables: this rank's tables.
        comm: the process group.
    """
    credited = sum(table.advantages is not None for table in tables)
    rewards, error = [], ""
    try:
        rewards = [] if credited else [_rewards(table, advantage, reward_kl) for table in tables]
    except BatchError as exception:
        error = str(exception)
    given_as = [t.turn_reward if advantage.by_turn else t.rewards for t in tables]
    single = sum(column is not None and column.dtype != torch.float64 for column in given_as)
    facts = torch.tensor([credited, len(tables) - credited, int(bool(error)), single])
    present, absent, failed, single = comm.sum(facts).tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if present:
        return list(tables)
    rewards = [reward for reward in rewards if len(reward)]
    own_numbers = torch.tensor([reward.shape[1] for reward in rewards], dtype=torch.int64)
    numbers = statistics.gather(own_numbers, comm)[0].unique().tolist()  # K of each table
    if advantage.by_turn:
        pad, ends = torch.nn.functional.pad, [numbers[-1] - reward.shape[1] for reward in rewards]
        padded = zip(rewards, ends, strict=True)
        rewards = [pad(reward, (0, end), value=torch.nan) for reward, end in padded]
    elif len(numbers) > 1:
        raise BatchError("the tables of the update hold different numbers of rewards")
    nothing = torch.zeros(0, *(numbers[-1:] or [1])).double()
    dtype = torch.float32 if single else torch.float64
    empty = torch.zeros(0).long()
    lengths = torch.cat([empty, *(table.lengths.cpu() for table in tables)]).double()
    by_response = torch.cat([torch.cat([nothing, *rewards]), lengths.unsqueeze(1)], 1)
    rows, start = statistics.gather(by_response, comm)
    names = torch.cat([empty, *(table.groups.cpu() for table in tables)])
    groups, _ = statistics.gather(names, comm)
    weights = tables[0].reward_weights if tables and advantage.decoupled else None
    whole = rows[:, :-1] if advantage.decoupled or advantage.by_turn else rows[:, 0]
    mine = advantage(whole.to(dtype), groups, rows[:, -1], weights)[
        start : start + len(by_response)
    ]
    parts = mine.split([len(table.lengths) for table in tables]) if tables else ()
    pairs = [(table, part.to(table.logprobs)) for table, part in zip(tables, parts, strict=True)]
    if advantage.by_turn:
        return [table.credited(part[table.responses, table.turn_numbers]) for table, part in pairs]
    return [table.replace(advantages=part) for table, part in pairs]


def _rewards(table: TokenBatch, advantage: Advantage, reward_kl: RewardKL) -> Tensor:
    """The rewards that an advantage reads, float64 [B, K], CPU.

    They are all rewards of a decoupled advantage, those of turns of one by turn, NaN where a turn
    has no token, else R − β·Σ_t (l0 − l_k).
    """
    column = table.column("rewards", f"the advantage {advantage}").detach().double().cpu()
    if advantage.decoupled:
        return column if column.dim() == 2 else column.unsqueeze(1)
    rewards = table.reward().detach().double()
    if advantage.by_turn:
        return _turn_rewards(table, rewards, f"the advantage {advantage}").cpu()
    if reward_kl.coefficient:
        old = table.finite("old_logprobs", "reward_kl").double()
        reference = table.finite(score_column(reward_kl.against), "reward_kl").double()
        rewards = rewards - reward_kl.coefficient * table.sum_by_response(old - reference)
    if advantage.nonnegative:
        check_sign(rewards, table.groups, column, table.reward_names or ())
    return rewards.cpu().unsqueeze(1)


def _turn_rewards(table: TokenBatch, rewards: Tensor, who: str) -> Tensor:
    """The rewards of turns, float64 [B, T]; a response without tokens has one turn with its R."""
    values, turns = table.finite("turn_reward", who).double(), table.turn_numbers
    longest = int(turns.max()) + 1 if len(turns) else 1
    by_turn = torch.full((len(rewards), longest), torch.nan).to(rewards)
    by_turn[:, 0] = rewards.where(table.lengths == 0, torch.nan)
    by_turn[table.responses, turns] = values
    return by_turn.masked_fill(~table.decided_responses.unsqueeze(1), torch.nan)
