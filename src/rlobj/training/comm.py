"""The process group as an objective sees it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["ProcessGroup"]


class ProcessGroup:
    """`rlobj.statistics.Comm` over torch.distributed; sums of integers and float64 are exact.

    Args:
        device: where the backend wants its tensors (a GPU for NCCL).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._active = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.rank = torch.distributed.get_rank() if self._active else 0
        self.size = torch.distributed.get_world_size() if self._active else 1

    def sum(self, tensor: Tensor) -> Tensor:
        """The element-wise sum over all ranks, on the tensor's own device."""
        if self.size == 1:
            return tensor
        total = tensor.to(self._device, copy=True)
        torch.distributed.all_reduce(total)
        return total.to(tensor.device)
