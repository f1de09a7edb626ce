"""A rollout dealt out for training: into mini-batches, and over ranks so that none waits.

Whole groups make a mini-batch, the same ones on any number of ranks. Inside it responses are dealt
one by one to the rank with the fewest tokens, longest first (Graham's LPT rule), since the ranks
wait for each other at each optimizer step. What an update computes does not depend on which rank
holds a response; only token ids and log-probs travel, and texts stay where they were sampled.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.objectives import statistics
from rlobj.objectives.tokens import TokenBatch
from rlobj.training.parallel.process_group import ProcessGroup
from rlobj.training.rollouts.collector import Rollout

__all__ = ["MiniBatch", "Sequences", "Share", "shard", "spread"]

Sequences = Sequence[tuple[Sequence[int], Sequence[int]]]
"""(prompt ids, response ids) of each response."""

_ID, _GROUP, _RANK, _PROMPT, _LENGTH, _REWARD = range(6)  # columns of the table of all responses


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
class Share:
    """What this rank trains on in a step.

    Attributes:
        table: its responses, mini-batch after mini-batch; `logprobs` are the sampler's.
        sequences: (prompt ids, response ids) of each.
        sizes: responses of each mini-batch; a rank may have none of one.
        imbalance: tokens of the rank with the most over the mean rank's, 1 where all are equal.
    """

    table: TokenBatch
    sequences: list[tuple[Sequence[int], Sequence[int]]]
    sizes: list[int]
    imbalance: float

    def mini_batches(self, table: TokenBatch) -> list[MiniBatch]:
        """The share in its mini-batches.

        Args:
            table: the share's table, perhaps with more columns.
        """
        ends = itertools.accumulate(self.sizes, initial=0)
        return [
            MiniBatch(part.replace(index=None), self.sequences[start:end])
            for part, (start, end) in zip(
                table.split(self.sizes), itertools.pairwise(ends), strict=True
            )
        ]


def shard(
    rollout: Rollout,
    updates: int,
    comm: ProcessGroup,
    device: torch.device,
    *,
    balance: bool = True,
) -> Share:
    """This rank's share of a step; called by all ranks together.

    The groups of all ranks, in the order of their ids, are cut into `updates` mini-batches as equal
    as they can be; one that is empty everywhere is left out.

    Args:
        rollout: this rank's.
        updates: mini-batches.
        comm: the process group.
        device: where the table goes.
        balance: False leaves every response where it was sampled.
    """
    whole, start = statistics.gather(_facts(rollout, comm.rank), comm)
    parts, owners, imbalance = [], whole[:, _RANK].long(), 1.0
    last = _without_gradient(whole)
    for part in _parts(whole, updates):
        part = part[whole[part, _ID].argsort()]
        if balance and comm.size > 1:
            costs = (whole[part, _PROMPT] + whole[part, _LENGTH]).long().tolist()
            owners[part] = torch.tensor(spread(costs, last[part].tolist(), comm.size))
        parts.append(part)
    if comm.size > 1:
        imbalance = _imbalance(whole, parts, owners, comm.size)
    mine = [part[owners[part] == comm.rank] for part in parts]
    order = torch.cat([torch.zeros(0, dtype=torch.int64), *mine])
    held = _fetched(rollout, whole, start, parts, owners, comm) if balance else _own(rollout, start)
    sizes = [len(part) for part in mine]
    return _share(whole[order], [held[i] for i in order.tolist()], sizes, imbalance, device)


def spread(costs: Sequence[int], last: Sequence[bool], ranks: int) -> list[int]:
    """The rank of each item, so that sums of costs are as equal as a greedy rule makes them.

    The costliest item left goes to the rank with the least so far. The items of `last` are dealt
    after all others: these are about equal among the ranks by themselves.

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


_Tokens = tuple[Sequence[int], Sequence[int], Sequence[float]]  # prompt, response, log-probs


def _facts(rollout: Rollout, rank: int) -> Tensor:
    """A row for each response, float64 [B, 6]."""
    rows = [
        [r.id, r.group, rank, len(r.sample.prompt), len(r.sample.tokens), r.reward]
        for r in rollout.responses
    ]
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 6)


def _parts(whole: Tensor, updates: int) -> list[Tensor]:
    """The rows of each mini-batch of whole groups."""
    groups, member = whole[:, _GROUP].unique(return_inverse=True)
    cuts = torch.arange(len(groups)).tensor_split(updates)
    return [torch.isin(member, cut).nonzero()[:, 0] for cut in cuts if len(cut)]


def _without_gradient(whole: Tensor) -> Tensor:
    """Responses without a gradient, probably: undecided, or in a group of equal rewards; bool [B].

    They are dealt last, so that what is left of an update without them is balanced as well.
    """
    rewards = whole[:, _REWARD]
    groups, member = whole[:, _GROUP].unique(return_inverse=True)
    nothing = torch.full((len(groups),), torch.nan, dtype=rewards.dtype)
    low, high = (
        nothing.scatter_reduce(0, member, rewards.nan_to_num(nan=worst), how, include_self=False)
        for how, worst in (("amin", torch.inf), ("amax", -torch.inf))
    )
    return rewards.isnan() | (low >= high)[member]


def _imbalance(whole: Tensor, parts: Sequence[Tensor], owners: Tensor, ranks: int) -> float:
    costs = whole[:, _PROMPT] + whole[:, _LENGTH]
    zeros = torch.zeros(ranks, dtype=costs.dtype)
    loads = [zeros.index_add(0, owners[part], costs[part]) for part in parts]
    mean = sum(float(load.mean()) for load in loads)
    return sum(float(load.max()) for load in loads) / mean if mean else 1.0


def _own(rollout: Rollout, start: int) -> dict[int, _Tokens]:
    samples = [r.sample for r in rollout.responses]
    return {i: (s.prompt, s.tokens, s.logprobs) for i, s in enumerate(samples, start)}


def _fetched(
    rollout: Rollout,
    whole: Tensor,
    start: int,
    parts: Sequence[Tensor],
    owners: Tensor,
    comm: ProcessGroup,
) -> dict[int, _Tokens]:
    """The tokens of this rank's responses, by row of the whole table."""
    own = _own(rollout, start)
    if comm.size == 1:
        return own
    everything = torch.cat([torch.zeros(0, dtype=torch.int64), *parts])
    origins = whole[:, _RANK].long()
    ids, chances = [], []
    for rank in range(comm.size):
        leaving = everything[(origins[everything] == comm.rank) & (owners[everything] == rank)]
        rows = [own[i] for i in leaving.tolist()] if rank != comm.rank else []
        ids.append(_tensor("i", [part for row in rows for part in row[:2]]))
        chances.append(_tensor("f", [row[2] for row in rows]))
    found: dict[int, _Tokens] = {}
    received = zip(comm.exchange(ids), comm.exchange(chances), strict=True)
    for rank, (tokens, logprobs) in enumerate(received):
        coming = everything[(origins[everything] == rank) & (owners[everything] == comm.rank)]
        if rank == comm.rank:
            found |= {i: own[i] for i in coming.tolist()}
            continue
        sizes = whole[coming][:, [_PROMPT, _LENGTH]].long()
        pieces = iter(tokens.split(sizes.flatten().tolist()))
        others = logprobs.split(sizes[:, 1].tolist())
        for i, piece in zip(coming.tolist(), others, strict=True):
            found[i] = (_array(next(pieces)), _array(next(pieces)), _array(piece))
    return found


def _share(
    rows: Tensor,
    held: Sequence[_Tokens],
    sizes: list[int],
    imbalance: float,
    device: torch.device,
) -> Share:
    sampler = _tensor("f", [row[2] for row in held]).to(device)
    table = TokenBatch(
        lengths=rows[:, _LENGTH].long(),
        groups=rows[:, _GROUP].long(),
        ids=rows[:, _ID].long(),
        rewards=rows[:, _REWARD],
        logprobs=sampler,
        sampler_logprobs=sampler,
    )
    return Share(table, [row[:2] for row in held], sizes, imbalance)


def _tensor(code: str, parts: Sequence[Sequence[float]]) -> Tensor:
    """Arrays one after another: int32 for "i", float32 for "f"."""
    joined = array(code)
    for part in parts:
        joined.extend(part)
    dtype = {"i": torch.int32, "f": torch.float32}[code]
    return torch.frombuffer(joined, dtype=dtype) if len(joined) else torch.zeros(0, dtype=dtype)


def _array(tensor: Tensor) -> array:
    code = "f" if tensor.dtype.is_floating_point else "i"
    return array(code, tensor.numpy().tobytes())
