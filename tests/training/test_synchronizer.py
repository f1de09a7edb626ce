"""Weights that a sampler leaves are taken: getting one may need all ranks."""

from __future__ import annotations

import pytest
import torch

from rlobj.training.rollouts.synchronizer import Synchronizer


class Taking:
    """A sampler that takes some weights and then fails, or takes no more."""

    dtype = None

    def __init__(self, count: int, error: bool) -> None:
        self.count, self.error = count, error

    def sync(self, weights, version: int) -> None:
        for _ in zip(range(self.count), weights, strict=False):
            pass
        if self.error:
            raise ValueError("of the sampler")

    def received(self) -> None:
        raise ValueError("of the sampler")


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("error", [True, False])
def test_every_rank_takes_all_weights_whatever_its_sampler_does(count, error):
    taken = []

    def weights():
        for index in range(3):
            taken.append(index)
            yield f"{index}.weight", torch.zeros(2)

    synchronizer = Synchronizer(Taking(count, error), weights)  # pyright: ignore
    with pytest.raises(ValueError, match="of the sampler"):
        synchronizer.push(1)
    assert taken == [0, 1, 2]
