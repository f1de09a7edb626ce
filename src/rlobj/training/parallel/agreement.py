"""Raise errors on all ranks together, so that no rank waits for one that has failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlobj.base.errors import RlobjError, RunError, counted
from rlobj.objectives.statistics import Comm
from rlobj.samplers.types import WaitEnded, WeightsLost

_TOGETHER = (WeightsLost, WaitEnded)
"""Errors that the ranks handle together: they stay what they are only where all errors are one."""


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
    own = [isinstance(error, kind) for kind in _TOGETHER]
    failed = torch.tensor([error is not None, fatal, *own]).long()
    failures, fatal_failures, *same = comm.sum(failed).tolist()
    kind = _TOGETHER[same.index(failures)] if failures in same else RunError
    if any(own) and kind is RunError:
        error = RunError(str(error))
    if error is not None and not (fatal_failures and isinstance(error, RunError)):
        raise error
    if fatal_failures:
        raise RankFailed(
            f"{what} failed on {counted(fatal_failures, 'other rank')}; see their output"
        )
    if failures:
        raise kind(f"{what} failed on {counted(failures, 'other rank')}; see their output")


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
            error = RunError(f"{what} failed: {raised}")
            error.__cause__ = raised
    except Exception as raised:
        error = raised
    agree(error, what, comm)


def any_rank(flag: bool, comm: Comm) -> bool:
    """Tell whether the flag is set on any rank."""
    return int(comm.sum(torch.tensor(int(flag)))) > 0


def largest(value: float, comm: Comm) -> float:
    """Return the largest value over all ranks."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return float(comm.sum(values).max())
