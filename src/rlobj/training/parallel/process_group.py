"""The process group as an objective sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["ProcessGroup"]


class ProcessGroup:
    """`statistics.Comm` over torch.distributed; sums of integers and float64 are exact.

    Every method is called by all ranks, in the same order.

    Args:
        device: where the backend wants its tensors (a GPU for NCCL).
        group: of torch.distributed; None = all processes. A thread of its own needs a group of its
            own, such as `torch.distributed.new_group(backend="gloo")` with the CPU as device.

    Attributes:
        rank: of this process in the group, from 0.
        size: processes in the group.
    """

    def __init__(self, device: torch.device, group: Any = None) -> None:
        self._device = device
        self._group = group
        active = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank(group) if active else 0
        self.size = torch.distributed.get_world_size(group) if active else 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The element-wise sum over all ranks, on the tensor's own device."""
        if self.size == 1:
            return tensor
        total = tensor.to(self._device, copy=True)
        torch.distributed.all_reduce(total, group=self._group)
        return total.to(tensor.device)

    def exchange(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Send one flat tensor to each rank; what each rank sent here, on the CPU.

        Args:
            parts: as many as ranks, of one dtype, of any lengths.
        """
        if self.size == 1:
            return list(parts)
        sizes = torch.zeros(self.size, self.size, dtype=torch.int64)
        sizes[self.rank] = torch.tensor([len(part) for part in parts])
        sizes = self.sum(sizes)
        sent = torch.cat(list(parts)).to(self._device)
        coming = sizes[:, self.rank].tolist()
        received = sent.new_empty(sum(coming))
        torch.distributed.all_to_all_single(
            received, sent, coming, sizes[self.rank].tolist(), group=self._group
        )
        return list(received.cpu().split(coming))

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order: anything that pickle takes."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """The first rank's value; what the others pass is ignored."""
        if self.size == 1:
            return value
        values = [value]
        torch.distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]
