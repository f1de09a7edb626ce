"""Responses divided over ranks: equal tokens for each, and the numbers of a run as they were."""

from __future__ import annotations

import math

import pytest
import torch

from rlobj.training.rollouts.sharding import spread

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
