"""Ranks as threads of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


def on_ranks(count: int, work: Callable[[Any], Any]) -> list[Any]:
    """The results of `work(comm)` on each rank; ranks are threads."""
    barrier, values = threading.Barrier(count, timeout=300), [torch.zeros(0)] * count

    class Rank:
        size = count

        def __init__(self, rank: int) -> None:
            self.rank = rank

        def sum(self, tensor: Tensor) -> Tensor:
            values[self.rank] = tensor.clone()
            barrier.wait()  # a rank that waits for another fails
            assert len({(each.shape, each.dtype) for each in values}) == 1
            total = torch.stack(values).sum(0)
            barrier.wait()
            return total

        def gather(self, value: Any) -> list[Any]:
            values[self.rank] = value
            barrier.wait()
            parts = list(values)
            barrier.wait()
            return parts

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda rank: work(Rank(rank)), range(count)))
