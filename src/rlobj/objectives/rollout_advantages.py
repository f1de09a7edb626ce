"""The column `advantages` of a rollout's tables, from the rewards of all ranks."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

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
    columns = [t.turn_reward if advantage.by_turn else t.rewards for t in tables]
    single = sum(column is not None and column.dtype != torch.float64 for column in columns)
    facts = torch.tensor([credited, len(tables) - credited, int(bool(error)), single])
    present, absent, failed, single = comm.sum(facts).tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if present:
        return list(tables)
    widths = torch.tensor([reward.shape[1] for reward in rewards if len(reward)]).long()
    widths = statistics.gather(widths, comm)[0].unique().tolist() or [1]  # K, or turns
    if len(widths) > 1 and not advantage.by_turn:
        raise BatchError("the tables of the update hold different numbers of rewards")
    rows, groups = torch.zeros(0, widths[-1] + 1).double(), torch.zeros(0).long()
    for table, reward in zip(tables, rewards, strict=True):
        padded = pad(reward, (0, widths[-1] - reward.shape[1]), value=torch.nan)
        rows = torch.cat([rows, torch.cat([padded, table.lengths.cpu().double()[:, None]], 1)])
        groups = torch.cat([groups, table.groups.cpu()])
    (rows, start), (groups, _) = statistics.gather(rows, comm), statistics.gather(groups, comm)
    weights = tables[0].reward_weights if tables and advantage.decoupled else None
    dtype = torch.float32 if single else torch.float64
    values = advantage(rows[:, :-1].to(dtype), groups, rows[:, -1], weights)[start:]
    done = []
    for table in tables:
        part, values = values.tensor_split([len(table.lengths)])
        part = part.to(table.logprobs)
        by_turn = advantage.by_turn
        part = part[table.responses, table.turn_numbers] if by_turn else table.spread(part)
        done.append(table.credited(part))
    return done


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
        check_sign(rewards)
    return rewards.cpu().unsqueeze(1)


def _turn_rewards(table: TokenBatch, rewards: Tensor, who: str) -> Tensor:
    """The rewards of turns, float64 [B, T]; a response without tokens has one turn with its R."""
    values, turns = table.finite("turn_reward", who).double(), table.turn_numbers
    longest = int(turns.max()) + 1 if len(turns) else 1
    by_turn = torch.full((len(rewards), longest), torch.nan).to(rewards)
    by_turn[:, 0] = rewards.where(table.lengths == 0, torch.nan)
    by_turn[table.responses, turns] = values
    return by_turn.masked_fill(~table.decided_responses.unsqueeze(1), torch.nan)
