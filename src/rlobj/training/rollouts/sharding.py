"""A rollout divided for training: into mini-batches, and over ranks so that none waits.

Whole groups make a mini-batch, the same ones on any number of ranks. Inside it responses go one by
one to the rank with the fewest tokens, longest first (Graham's LPT rule), because the ranks wait
for each other at each optimizer step. What an update computes does not depend on which rank holds a
response. Only token ids and log-probs travel; texts stay where they were sampled.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import torch

from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Reward
from rlobj.rewards.functions import ColumnValue
from rlobj.scoring.packing import sequence_length
from rlobj.settings.run_config import RunConfig
from rlobj.training.rollouts.rollout import Response, Rollout, rewards_differ

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(prompt ids, response ids) of each response."""

Judge = Callable[[Response], Sequence[float]]
"""A response -> 1 for each spurious token and 0 for each other one, NaN = not judged."""

Hints = Callable[[Response], Mapping[str, Sequence[int]]]
"""A response -> the prompt ids of each score that has a prompt of its own."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's responses of one optimizer update.

    Attributes:
        table: their tokens.
        sequences: their token ids.
        current: the policy's columns of the table are those of its present weights.
    """

    table: TokenBatch
    sequences: Sequences
    current: bool = False


@dataclass(frozen=True)
class StepBatch:
    """What this rank trains on in a step: some mini-batches.

    Attributes:
        table: its responses, mini-batch after mini-batch; `logprobs` are the sampler's.
        sequences: token ids of each response.
        sizes: responses of each mini-batch; a rank may have none of one.
        imbalance: tokens of the rank with the most over the mean rank's, 1 where all are equal.
        prompts: by score, the prompt ids of each response that the score sees instead.
    """

    table: TokenBatch
    sequences: Sequences
    sizes: list[int]
    imbalance: float
    prompts: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)

    def mini_batches(self, table: TokenBatch) -> list[MiniBatch]:
        """Its mini-batches.

        Args:
            table: its table, perhaps with more columns.
        """
        ends = itertools.accumulate(self.sizes, initial=0)
        return [
            MiniBatch(part.replace(index=None), self.sequences[start:end])
            for part, (start, end) in zip(
                table.split(self.sizes), itertools.pairwise(ends), strict=True
            )
        ]


class _Response(NamedTuple):
    """What every rank knows of a response."""

    id: int
    group: int
    rank: int
    """The rank that sampled it."""
    reward: float
    rewards: tuple[float, ...]
    prompt: Sequence[int]
    tokens: Sequence[int]
    logprobs: Sequence[float]
    columns: Mapping[str, ColumnValue]
    prompts: Mapping[str, Sequence[int]]
    turns: Sequence[int]
    """The turn of each token; empty if the response is one turn."""
    turn_rewards: Sequence[float]

    @property
    def cost(self) -> int:
        """Tokens of prompt and response, with what was said in between."""
        return sequence_length(self.prompt, self.tokens)

    def values(self, name: str) -> Sequence[float]:
        """A column's value of each token."""
        value = self.columns[name]
        return value if isinstance(value, Sequence) else [value] * len(self.tokens)


def shard(
    rollout: Rollout,
    config: RunConfig,
    comm: ProcessGroup,
    device: torch.device,
    judge: Judge | None = None,
    hints: Hints | None = None,
) -> StepBatch:
    """This rank's part of a step; called by all ranks together.

    The groups of all ranks, in the order of their ids, are cut into `updates_per_step` mini-batches
    as equal as they can be; one that is empty everywhere is left out. Without `training.balance`,
    every response stays on the rank that sampled it.

    Args:
        rollout: this rank's.
        config: of the run; names and weighs several rewards.
        comm: the process group.
        device: where the table goes.
        judge: finds spurious tokens; the table then has the column `spurious` of its own: 1 or 0,
            NaN = not judged.
        hints: encodes the prompts of scores.
    """
    local = [
        _Response(
            r.id,
            r.group,
            comm.rank,
            r.reward,
            r.grade.rewards or (r.reward,),
            r.sample.prompt,
            r.sample.response,
            r.sample.logprobs,
            {**r.columns, **({"spurious": judge(r)} if judge else {})},
            hints(r) if hints else {},
            r.sample.by_turn(),
            r.turn_rewards,
        )
        for r in rollout.responses
    ]
    responses = list(itertools.chain(*comm.gather(local)))
    parts = _parts(responses, config.training.updates_per_step)
    last = _without_gradient(responses)
    owners = {response.id: response.rank for response in responses}
    for part in parts if config.training.balance else ():
        costs, late = [each.cost for each in part], [each.id in last for each in part]
        ranks = spread(costs, late, comm.size)
        owners.update(zip([each.id for each in part], ranks, strict=True))
    mine = [[each for each in part if owners[each.id] == comm.rank] for part in parts]
    held = list(itertools.chain(*mine))
    return StepBatch(
        _table(held, config.rewards, device, [*config.columns, *(["spurious"] if judge else [])]),
        [(each.prompt, each.tokens) for each in held],
        [len(part) for part in mine],
        _imbalance(parts, owners, comm.size),
        {name: [each.prompts[name] for each in held] for name in (held[0].prompts if held else ())},
    )


def spread(costs: Sequence[int], last: Sequence[bool], ranks: int) -> list[int]:
    """The rank of each item, so that sums of costs are as equal as a greedy rule makes them.

    The costliest item left goes to the rank with the least so far. The items of `last` come after
    all others, so that the others are about equal among the ranks by themselves.

    Example:
        >>> spread([4, 3, 3, 2, 2], [False] * 5, 2)
        [0, 1, 1, 0, 0]
    """
    loads = [(0, rank) for rank in range(ranks)]
    owners = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: (last[i], -costs[i], i)):
        load, rank = heapq.heappop(loads)
        owners[i] = rank
        heapq.heappush(loads, (load + costs[i], rank))
    return owners


def _parts(responses: Sequence[_Response], updates: int) -> list[list[_Response]]:
    """The mini-batches, each sorted by id."""
    groups = numpy.array_split(sorted({each.group for each in responses}), updates)
    ordered = sorted(responses, key=lambda each: each.id)
    parts = [{*part.tolist()} for part in groups]
    return [[each for each in ordered if each.group in part] for part in parts if part]


def _without_gradient(responses: Sequence[_Response]) -> set[int]:
    """The ids of responses that are undecided, or in a group of equal rewards.

    They probably have no gradient. They are divided last, so that what is left of an update without
    them is balanced as well.
    """
    rewards: defaultdict[int, set[float]] = defaultdict(set)
    for each in responses:
        if not math.isnan(each.reward):
            rewards[each.group].add(each.reward)
    signal = {group for group, given in rewards.items() if rewards_differ(frozenset(given))}
    return {each.id for each in responses if math.isnan(each.reward) or each.group not in signal}


def _imbalance(
    parts: Sequence[Sequence[_Response]], owners: Mapping[int, int], ranks: int
) -> float:
    """Tokens of the fullest rank over those of the mean rank, both summed over mini-batches."""
    fullest = mean = 0.0
    for part in parts:
        loads = [0] * ranks
        for response in part:
            loads[owners[response.id]] += response.cost
        fullest, mean = fullest + max(loads), mean + sum(loads) / ranks
    return fullest / mean if mean else 1.0


def _table(
    held: Sequence[_Response], rewards: Reward, device: torch.device, own: Iterable[str]
) -> TokenBatch:
    """The tokens of this rank's responses; `own` are the columns besides those of rlobj."""
    names = rewards.names
    values = torch.tensor([response.rewards for response in held], dtype=torch.float64)
    values = values.reshape(len(held), len(names) if names else 1)
    flat = array("f")
    for response in held:
        flat.extend(response.logprobs)
    logprobs = torch.frombuffer(flat, dtype=torch.float32) if flat else torch.zeros(0)
    logprobs = logprobs.to(device)
    by_turn: dict[str, Any] = {}
    if any(response.turns for response in held):
        pairs = [
            (turn, response.turn_rewards[turn] if response.turns else response.reward)
            for response in held
            for turn in response.turns or [0] * len(response.tokens)
        ]
        turns, turn_rewards = zip(*pairs, strict=True)
        by_turn = {
            "turn": torch.tensor(turns),
            "turn_reward": torch.tensor(turn_rewards, dtype=torch.float64),
        }
    return TokenBatch(
        lengths=torch.tensor([len(response.tokens) for response in held], dtype=torch.int64),
        groups=torch.tensor([response.group for response in held], dtype=torch.int64),
        ids=torch.tensor([response.id for response in held], dtype=torch.int64),
        rewards=values if names else values[:, 0],
        reward_names=names,
        reward_weights=rewards.weights,
        logprobs=logprobs.nan_to_num(0.0),  # until the policy scores them
        sampler_logprobs=logprobs,
        columns={x: torch.tensor([y for r in held for y in r.values(x)]) for x in own},
        **by_turn,
    )
