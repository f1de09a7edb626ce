"""A rollout divided for training: into mini-batches, and over ranks so that none waits.

Whole groups make a mini-batch, the same ones on any number of ranks. Inside it responses go one by
one to the rank with the fewest tokens, longest first (Graham's LPT rule), because the ranks wait
for each other at each optimizer step. What an update computes does not depend on which rank holds a
response. Only token ids and log-probs travel; texts stay where they were sampled.
"""

import heapq
import itertools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy
import torch

from rlobj.base.errors import RunError, Setting, counted
from rlobj.objectives.rules.columns import ColumnLevel
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Graded
from rlobj.samplers import Response
from rlobj.samplers.response import TurnRecord
from rlobj.scoring.cutting import sequence_length
from rlobj.settings.run_config import RunConfig
from rlobj.training.rollouts.collector import Rollout, has_signal

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(prompt ids, response ids) of each response."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's responses of one optimizer update.

    Attributes:
        table: their tokens.
        responses: without their texts where these need not be here.
        current: the policy's columns of the table are those of its present weights.
        first_row: of the table, in the table of the step.
        first: it is the first of the step, so that these weights are those before all its updates.
    """

    table: TokenBatch
    responses: Sequence[Response]
    current: bool = False
    first_row: int = 0
    first: bool = False

    @cached_property
    def sequences(self) -> Sequences:
        """The token ids of each response."""
        return [(response.prompt, response.interleaved) for response in self.responses]


@dataclass(frozen=True)
class StepBatch(MiniBatch):
    """What this rank trains on in a step: some mini-batches, one after another.

    Attributes:
        sizes: responses of each mini-batch; a rank may have none of one.
        imbalance: tokens of the rank with the most over the mean rank's, 1 where all are equal.
    """

    sizes: Sequence[int] = ()
    imbalance: float = 1.0

    def mini_batches(self, table: TokenBatch) -> list[MiniBatch]:
        """Its mini-batches.

        Args:
            table: its table, perhaps with more columns.
        """
        ends = itertools.accumulate(self.sizes, initial=0)
        tables = table.split(self.sizes)
        rows = itertools.accumulate(map(len, tables), initial=0)
        return [
            MiniBatch(part.replace(index=None), self.responses[start:end], first_row=row)
            for part, (start, end), row in zip(tables, itertools.pairwise(ends), rows, strict=False)
        ]


def shard(
    rollout: Rollout,
    config: RunConfig,
    comm: ProcessGroup,
    device: torch.device,
    step: int = 0,
) -> StepBatch:
    """This rank's part of a step; called by all ranks together.

    The groups of all ranks, in the order of their ids, are cut into `updates_per_step` mini-batches
    as equal as they can be; one that is empty everywhere is left out.

    Args:
        rollout: this rank's.
        config: of the run; names and weighs several rewards.
        comm: the process group.
        device: where the table goes.
        step: steps that were trained before.

    Raises:
        RunError: l0 is the sampler's log-prob, and the sampler does not know one; on all ranks.
    """
    local = rollout.responses
    ranks = comm.gather([*map(without_texts, local)] if comm.size > 1 else local)
    responses = list(itertools.chain(*ranks))
    parts = _parts(responses, config.training.updates_per_step)
    owners = {response.id: rank for rank, held_there in enumerate(ranks) for response in held_there}
    for part in parts if comm.size > 1 else ():
        groups = [list(group) for _, group in itertools.groupby(part, lambda r: r.group)]
        silent = [not has_signal(group, decoupled=False) for group in groups for _ in group]
        shares = spread(list(map(_cost, part)), silent, comm.size)
        owners |= zip([response.id for response in part], shares, strict=True)
    mine = [[r for r in part if owners[r.id] == comm.rank] for part in parts]
    held = list(itertools.chain(*mine))
    table = _table(held, config, device, step, responses[0].columns if responses else ())
    if any(response.began for response in responses):
        rollouts = [response.rollout for response in held]
        table = table.replace(rollouts=torch.tensor(rollouts, dtype=torch.int64))
    if config.training.old_logprobs == "sampler":
        unknown = sum(int((~numpy.isfinite(response.logprobs)).sum()) for response in responses)
        if unknown:
            raise RunError(
                f"training.old_logprobs=sampler: the sampler knows no log-prob of "
                f"{counted(unknown, 'token')} of this step. Use ",
                Setting("training.old_logprobs", "policy"),
            )
        table = table.replace(old_logprobs=table.sampler_logprobs)
    return StepBatch(
        table=table,
        responses=held,
        sizes=[len(part) for part in mine],
        imbalance=_imbalance(parts, owners, comm.size),
    )


def without_texts(response: Response) -> Response:
    """What other ranks need of a response."""
    turns = [
        TurnRecord(turn.size, "", turn.observed, number=turn.number) for turn in response.turns
    ]
    grade = Graded(response.reward, None, "", None, response.grade.rewards)
    return replace(response, text="", turns=turns, problem=None, grade=grade)


def _cost(response: Response) -> int:
    """Tokens of prompt and response, with what was said in between."""
    return sequence_length(response.prompt, response.interleaved)


def spread(costs: Sequence[int], last: Sequence[bool], ranks: int) -> list[int]:
    """The rank of each item, so that sums of costs are as equal as a greedy rule makes them.

    The costliest item left goes to the rank with the least so far. The items of `last` come after
    all others: those of groups without signal, which probably do not go through the model again.

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


def _parts(responses: Sequence[Response], updates: int) -> list[list[Response]]:
    """The mini-batches, each sorted by rollout and id, so that groups stay together."""
    groups = numpy.array_split(sorted({response.group for response in responses}), updates)
    ordered = sorted(responses, key=lambda response: (response.rollout, response.id))
    parts = [{*part.tolist()} for part in groups]
    return [[r for r in ordered if r.group in part] for part in parts if part]


def _imbalance(parts: Sequence[Sequence[Response]], owners: Mapping[int, int], ranks: int) -> float:
    """Tokens of the fullest rank over those of the mean rank, both summed over mini-batches."""
    loads = numpy.zeros((len(parts), ranks))
    for part, of_part in zip(parts, loads, strict=True):
        for response in part:
            of_part[owners[response.id]] += _cost(response)
    return float(loads.max(1).sum() / loads.mean(1).sum())


def _table(
    held: Sequence[Response], config: RunConfig, device: torch.device, step: int, own: Iterable[str]
) -> TokenBatch:
    """The tokens of this rank's responses, with these columns besides rlobj's."""
    rewards, names, levels = config.rewards, config.rewards.names, config.objective.columns
    values = [response.grade.rewards or (response.reward,) for response in held]
    values = torch.tensor(values, dtype=torch.float64).reshape(len(held), len(names or [""]))
    flat = array("f")
    for response in held:
        flat.extend(response.logprobs)
    logprobs = torch.frombuffer(flat, dtype=torch.float32) if flat else torch.zeros(0)
    logprobs = logprobs.to(device)
    runs = [run for response in held for run in response.versions]
    versions, tokens = torch.tensor(runs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    by_turn: dict[str, Any] = {}
    if any(response.turns for response in held):
        pairs = [pair for response in held for pair in _turns(response)]
        turns, turn_rewards = zip(*pairs, strict=True)
        by_turn = {
            "turn": torch.tensor(turns),
            "turn_reward": torch.tensor(turn_rewards, dtype=torch.float64),
        }
    return TokenBatch(
        lengths=torch.tensor([response.length for response in held], dtype=torch.int64),
        groups=torch.tensor([response.group for response in held], dtype=torch.int64),
        ids=torch.tensor([response.id for response in held], dtype=torch.int64),
        rewards=values if names else values[:, 0],
        versions=versions.repeat_interleave(tokens),
        version=step,
        reward_names=names,
        reward_weights=rewards.weights,
        logprobs=logprobs.nan_to_num(0.0),  # until the policy scores them
        sampler_logprobs=logprobs,
        columns={name: _column(held, name, levels.get(name, "token")) for name in own},
        **by_turn,
    )


def _turns(response: Response) -> list[tuple[int, float]]:
    """The number of each token's turn in its rollout, and the reward of this turn."""
    turns = [(turn.number, turn.size) for turn in response.turns] or [(0, response.length)]
    rewards = response.turn_rewards or [response.reward]
    parts = zip(turns, rewards, strict=True)
    return [(number, reward) for (number, size), reward in parts for _ in range(size)]


def _column(held: Sequence[Response], name: str, level: ColumnLevel) -> torch.Tensor:
    """A column of a run's own: one value for each response, [B, 1], or each token, [N]."""
    values = [response.columns[name] for response in held]
    if level in ("response", "rollout") and not any(
        isinstance(value, Sequence) for value in values
    ):
        return torch.tensor(values, dtype=torch.float64)[:, None]
    spread = (
        value if isinstance(value, Sequence) else [value] * response.length
        for value, response in zip(values, held, strict=True)
    )
    return torch.tensor([*itertools.chain.from_iterable(spread)], dtype=torch.float64)
