"""Collective operations of the objectives over torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlobj.base.progress import waiting


class ProcessGroup:
    """`statistics.Comm` over torch.distributed; tensors keep their dtype.

    All ranks call every method, in the same order.

    Args:
        device: device of the backend's tensors (a GPU for NCCL).
        group: group of torch.distributed; None = all processes. Each thread needs a separate
            group, for example `torch.distributed.new_group(backend="gloo")` with the CPU as device.

    Attributes:
        rank: rank of this process in the group, from 0.
        size: number of processes in the group.
    """

    def __init__(self, device: torch.device | str = "cpu", group: Any = None) -> None:
        self._device = device
        self._group = group
        active = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank(group) if active else 0
        self.size = torch.distributed.get_world_size(group) if active else 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the element-wise sum over all ranks, on the device of the tensor."""
        if self.size == 1:
            return tensor
        total = tensor.to(self._device, copy=True)
        with waiting():
            torch.distributed.all_reduce(total, group=self._group)
        return total.to(tensor.device)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order; any type that pickle supports."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        with waiting():
            torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value on all ranks."""
        if self.size == 1:
            return value
        values = [value]
        with waiting():
            torch.distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]
