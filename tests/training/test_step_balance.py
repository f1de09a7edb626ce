"""Responses divided over ranks: equal tokens for each, and the numbers of a run as they were."""

from __future__ import annotations

import itertools
import math
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from forked import call_in_ranks

from rlobj.data import Problem
from rlobj.ranks import ProcessGroup
from rlobj.rewards import Graded
from rlobj.samplers import Response
from rlobj.settings.run_config import RunConfig
from rlobj.training.rollouts.rollout import Rollout
from rlobj.training.rollouts.sharding import StepBatch, shard, spread

SIGMAS = [0.5, 0.8, 1.1]


def skewed(sigma: float, count: int = 512, seed: int = 0) -> list[int]:
    """Lognormal lengths, median 2,000 tokens, cut at 16,384."""
    generator = torch.Generator().manual_seed(seed)
    drawn = (math.log(2000) + sigma * torch.randn(count, generator=generator)).exp()
    return drawn.round().clamp(1, 16384).long().tolist()


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("sigma", SIGMAS)
def test_ranks_get_equal_tokens_of_skewed_lengths(sigma, ranks):
    costs = skewed(sigma)
    owners = spread(costs, [False] * 512, ranks)
    loads = [sum(c for c, o in zip(costs, owners, strict=True) if o == r) for r in range(ranks)]
    assert max(loads) / (sum(loads) / ranks) <= 1.01
    turns = [sum(costs[rank::ranks]) for rank in range(ranks)]
    assert max(turns) > max(loads)


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_what_is_trained_is_balanced_beside_what_is_not(ranks):
    costs, idle = skewed(0.8), [i % 5 < 2 for i in range(512)]
    owners = spread(costs, idle, ranks)
    for left in ([True, False], [False]):
        loads = [0] * ranks
        for cost, owner, last in zip(costs, owners, idle, strict=True):
            loads[owner] += cost * (last in left)
        assert max(loads) / (sum(loads) / ranks) <= 1.01


# Real ranks: what `shard` gives is what was sampled.

GROUPS, SIZE, UPDATES = 61, 6, 3


def made(group: int, j: int) -> Response:
    """The same response wherever it is made; undecided now and then, some groups dead."""
    generator = torch.Generator().manual_seed(100 * group + j)
    length = int((3 + 1.1 * torch.randn((), generator=generator)).exp())
    reward = math.nan if j == 5 and group % 3 == 0 else float(group % 4 == 0 or j % 2)
    return Response(
        prompt=range(2 + group % 5),
        tokens=torch.randint(0, 999, (length,), generator=generator).tolist(),
        logprobs=(-torch.rand(length, generator=generator)).tolist(),
        text=f"{group}.{j}",
        finish="stop",
        weight_version=0,
        id=group * SIZE + j,
        group=group,
        problem=Problem(id=str(group), prompt="", answer=""),
        grade=Graded(reward, None, "", None),
    )


def rollout_of(rank: int, size: int) -> Rollout:
    """Whole groups in turn; with five ranks the last one has none."""
    size = size - 1 if size == 5 else size
    own = range(GROUPS)[rank::size] if rank < size else []
    responses = [made(group, j) for group in own for j in range(SIZE)]
    return Rollout(responses, [], 1, {}, {})


def listed(share: StepBatch) -> list[list[tuple]]:
    """Each mini-batch's responses with all that is known of them."""
    table, rows = share.table, iter(share.table.lengths.cumsum(0).tolist())
    ends = [next(rows) for _ in share.sequences]
    flat = []
    for i, (prompt, response) in enumerate(share.sequences):
        part = slice(ends[i] - len(response), ends[i])
        assert torch.equal(table.logprobs[part], table.sampler_logprobs[part])
        facts = (int(table.ids[i]), int(table.groups[i]), repr(float(table.rewards[i])))
        flat.append((*facts, list(prompt), list(response), table.logprobs[part].tolist()))
    ends = torch.tensor([0, *share.sizes]).cumsum(0).tolist()
    return [flat[a:b] for a, b in itertools.pairwise(ends)]


def run(balance: bool = True) -> RunConfig:
    return RunConfig(training={"updates_per_step": UPDATES, "balance": balance})


def rank_main(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    store, patience = f"file://{folder}/store", timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=patience)
    comm, device = ProcessGroup(torch.device("cpu")), torch.device("cpu")
    found = {}
    for balance in (True, False):
        share = shard(rollout_of(rank, size), run(balance), comm, device)
        found[balance] = (listed(share), share.imbalance)
    nothing = Rollout([], [], 1, {}, {})
    found["empty"] = shard(nothing, run(), comm, device).sizes
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_every_response_arrives_once_and_whole(tmp_path):
    size = 5
    call_in_ranks(rank_main, size, tmp_path)
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in range(size)]
    alone = shard(rollout_of(0, 1), run(), ProcessGroup(torch.device("cpu")), torch.device("cpu"))
    whole = listed(alone)
    assert [len(part) for part in whole] == [126, 120, 120]
    for balance in (True, False):
        parts = [each[balance][0] for each in found]
        together = [sorted(r for rank in parts for r in rank[i]) for i in range(UPDATES)]
        assert together == [sorted(part) for part in whole]
        assert all(part == sorted(part) for rank in parts for part in rank)
    assert len({each[True][1] for each in found}) == 1
    assert found[0][True][1] < 1.02
    assert found[0][True][1] + 0.03 < found[0][False][1]
    assert all(each["empty"] == [] for each in found)
