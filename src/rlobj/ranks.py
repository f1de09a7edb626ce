"""The processes of a run: collective operations over them, and errors that all of them raise."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import RlobjError, RunError, counted
from rlobj.objectives.statistics import Comm
from rlobj.samplers.types import WaitEnded, WeightsLost

_TOGETHER = (WeightsLost, WaitEnded)
"""Errors that the ranks handle together: they stay what they are only where all errors are one."""


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
        with self._answered():
            torch.distributed.all_reduce(total, group=self._group)
        return total.to(tensor.device)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order; any type that pickle supports."""
        if self.size == 1:
            return [value]
        values = [None] * self.size
        with self._answered():
            torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Return the first rank's value on all ranks."""
        if self.size == 1:
            return value
        values = [value]
        with self._answered():
            torch.distributed.broadcast_object_list(values, group=self._group, group_src=0)
        return values[0]

    @contextmanager
    def _answered(self) -> Iterator[None]:
        """Raise RankFailed if another rank does not answer in time, or has ended."""
        try:
            yield
        except RuntimeError as error:  # gloo's and NCCL's name no rank
            what = f"rank {self.rank} of {self.size} has no answer from another rank"
            raise RankFailed(f"{what}: {error}") from error


class RankFailed(RunError):
    """Another rank has ended or is about to end; communication with it is not possible."""


def agree(error: Exception | None, what: str, comm: Comm) -> None:
    """Raise an error on all ranks if any rank has one.

    Args:
        error: this rank's error, or None.
        what: the work that was done, for the message on ranks without an error of their own.
        comm: the process group.

    Raises:
        Exception: this rank's own error.
        RunError: another rank has a RunError; all ranks can still save their state together.
        WeightsLost, WaitEnded: on all ranks or none.
        RankFailed: another rank has a different error, and ends.
    """
    fatal = error is not None and not isinstance(error, RunError)
    kinds = [isinstance(error, kind) for kind in _TOGETHER]
    failed = torch.tensor([error is not None, fatal, *kinds]).long()
    failures, fatal_failures, *same = comm.sum(failed).tolist()
    kind = _TOGETHER[same.index(failures)] if failures in same else RunError
    if any(kinds) and kind is RunError:
        error = RunError(error)
    if error is not None and not (fatal_failures and isinstance(error, RunError)):
        raise error
    if failures:
        kind = RankFailed if fatal_failures else kind
        number = counted(fatal_failures or failures, "other rank")
        raise kind(f"{what} failed on {number}; see their output")


@contextmanager
def together(comm: Comm, what: str, *, survive: bool = False) -> Iterator[None]:
    """Raise an error after the block on all ranks if any rank had one; see `agree`.

    A rank that fails must have made the same collective calls inside the block as the others.

    Args:
        comm: the process group.
        what: the work of the block, for messages.
        survive: errors of rlobj and of the system become RunErrors, so that all ranks can save.
    """
    error: Exception | None = None
    try:
        yield
    except (RlobjError, OSError) as raised:
        error = raised
        if survive and not isinstance(raised, RunError):
            error = RunError(f"{what} failed: ", raised)
            error.__cause__ = raised
    except Exception as raised:
        error = raised
    if error is not None or comm.size > 1:
        agree(error, what, comm)


def any_rank(flag: bool, comm: Comm) -> bool:
    """Tell whether the flag is set on any rank."""
    return int(comm.sum(torch.tensor(int(flag)))) > 0


def largest(value: float, comm: Comm) -> float:
    """Return the largest value over all ranks."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return float(comm.sum(values).max())
