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
from rlobj.objectives.rollouts import Rollouts, check_turns
from rlobj.objectives.rules.columns import score_column
from rlobj.objectives.statistics import Comm, SingleProcess
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
    rolled = sum(table.rollouts is not None for table in tables)
    facts = [credited, len(tables) - credited, bool(error), single, rolled, len(tables) - rolled]
    facts = comm.sum(torch.tensor(facts, dtype=torch.int64))
    present, absent, failed, single, several, others = facts.tolist()
    if present and absent:
        raise BatchError("column 'advantages' is in some tables of the update, not in all")
    if failed:
        raise BatchError(error or "another rank's rewards cannot be used; see its error")
    if several and others:
        raise BatchError("column 'rollouts' is in some tables of the update, not in all")
    if present:
        return list(tables)
    widths = torch.tensor([reward.shape[1] for reward in rewards if len(reward)]).long()
    widths = statistics.gather(widths, comm)[0].unique().tolist() or [_SUMS + 1]
    if len(widths) > 1 and not advantage.by_turn:
        raise BatchError("the tables of the update hold different numbers of rewards")
    rows, names = torch.zeros(0, widths[-1]).double(), torch.zeros(0, 3).long()
    for table, reward in zip(tables, rewards, strict=True):
        padded = pad(reward, (0, widths[-1] - reward.shape[1]), value=torch.nan)
        rollouts = torch.zeros_like(table.groups) if table.rollouts is None else table.rollouts
        rows = torch.cat([rows, padded])
        ids = torch.stack([table.groups, rollouts, table.response_ids], 1)
        names = torch.cat([names, ids.cpu()])
    (rows, start), (names, _) = statistics.gather(rows, comm), statistics.gather(names, comm)
    groups, number = names[:, 0], torch.arange(len(names))
    if several:
        rows, groups, number = _by_rollout(rows, names, advantage.by_turn)
    rewards, lengths = rows[:, _SUMS:], rows[:, 0]
    if advantage.by_turn:
        rewards[:, 0] = torch.where(lengths == 0, rows[:, 2], rewards[:, 0])
    elif not advantage.decoupled:
        rewards = (rows[:, 2] - rows[:, 1])[:, None]
    weights = tables[0].reward_weights if tables and advantage.decoupled else None
    dtype = torch.float32 if single else torch.float64
    values = advantage(rewards.to(dtype), groups, lengths, weights)[number][start:]
    done = []
    for table in tables:
        part, values = values.tensor_split([len(table.lengths)])
        part = part.to(table.logprobs)
        by_turn = advantage.by_turn
        part = part[table.responses, table.turn_numbers] if by_turn else table.spread(part)
        done.append(table.credited(advantages=part))
    return done


_SUMS = 3
"""Columns before the rewards: the number of tokens, β·Σ_t (l0 − l_k), and the reward, the sum."""


def _by_rollout(rows: Tensor, names: Tensor, by_turn: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of all ranks' rollouts, their groups, and the number of each row's rollout.

    Raises:
        BatchError: two rows of a rollout have other groups, other rewards, or the same turn.
    """
    groups, ids, responses = names.unbind(1)
    alike = {"groups": groups, "rewards": rows[:, 2:3] if by_turn else rows[:, 2:]}
    rollouts = Rollouts.of(ids, SingleProcess(), responses, **alike)
    sums = statistics.exact_sum_by(rows[:, 1], rollouts.number, rollouts.count, SingleProcess())
    table = rollouts.once(rows)
    table[:, 0], table[:, 1] = rollouts.sum(rows[:, 0]), sums
    if by_turn:  # each turn lies in one row
        row, turn = rows[:, _SUMS:].isfinite().nonzero().unbind(1)
        check_turns(ids[row], turn)
        table[:, _SUMS:] = torch.nan
        table[rollouts.number[row], _SUMS + turn] = rows[row, _SUMS + turn]
    return table, rollouts.once(groups), rollouts.number


def _rewards(table: TokenBatch, advantage: Advantage, reward_kl: RewardKL) -> Tensor:
    """What an advantage reads of each response, float64 [B, 3 + K], CPU; see `_SUMS`.

    The last columns are all rewards of a decoupled advantage, and those of turns of one by turn,
    NaN where a turn has no token.
    """
    who = f"the advantage {advantage}"
    column = table.column("rewards", who).detach().double()
    rewards = table.reward().detach().double()
    if advantage.nonnegative:
        check_sign(rewards)
    kl = torch.zeros_like(rewards)
    if reward_kl.coefficient:
        old = table.finite("old_logprobs", "reward_kl").double()
        reference = table.finite(score_column(reward_kl.against), "reward_kl").double()
        kl = reward_kl.coefficient * table.sum_by_response(old - reference)
        kl = kl.where(table.decided_responses, 0.0)
    parts = [table.lengths.double(), kl, rewards]
    if advantage.by_turn:
        parts += _turn_rewards(table, who).unbind(1)
    elif advantage.decoupled:
        parts += column.unbind(1) if column.dim() == 2 else [column]
    return torch.stack(parts, 1).cpu()


def _turn_rewards(table: TokenBatch, who: str) -> Tensor:
    """The rewards of turns, float64 [B, T]; NaN where there is none, or the reward is undecided."""
    values, turns = table.finite("turn_reward", who).double(), table.turn_numbers
    longest = int(turns.max()) + 1 if len(turns) else 1
    by_turn = values.new_full((len(table.lengths), longest), torch.nan)
    by_turn[table.responses, turns] = values
    return by_turn.masked_fill(~table.decided_responses.unsqueeze(1), torch.nan)
