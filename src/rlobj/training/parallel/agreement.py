"""Ranks that fail together: a rank alone in an error would leave the others waiting for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rlobj.base.errors import RunError
from rlobj.objectives.statistics import Comm

__all__ = ["RankFailed", "agree", "any_rank", "largest", "together"]


class RankFailed(RunError):
    """Another rank is gone, or about to be: no exchange with it is possible any more."""


def agree(error: Exception | None, what: str, comm: Comm) -> None:
    """Raise on all ranks where one has an error; on none otherwise.

    Args:
        error: this rank's; None = all is well here.
        what: the work, for the error of the ranks where it went well.
        comm: the process group.

    Raises:
        Exception: this rank's own error.
        RunError: another rank raises a RunError; all ranks can still go on to save what there is.
        RankFailed: another rank raises something else, and ends.
    """
    ending = error is not None and not isinstance(error, RunError)
    failed = torch.tensor([int(error is not None), int(ending)])
    failures, endings = comm.sum(failed).tolist()
    if error is not None and not (endings and isinstance(error, RunError)):
        raise error
    if endings:
        raise RankFailed(f"{what} failed on {endings} other rank(s); their output says why")
    if failures:
        raise RunError(f"{what} failed on {failures} other rank(s); their output says why")


@contextmanager
def together(comm: Comm, what: str) -> Iterator[None]:
    """All ranks leave the block in the same way; see `agree`.

    Exchanges inside have to be the same on a rank that fails as on the others.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    agree(error, what, comm)


def any_rank(flag: bool, comm: Comm) -> bool:
    """Is the flag set on any rank?"""
    return int(comm.sum(torch.tensor(int(flag)))) > 0


def largest(value: float, comm: Comm) -> float:
    """The largest of all ranks' values."""
    values = torch.zeros(comm.size, dtype=torch.float64)
    values[comm.rank] = value
    return float(comm.sum(values).max())
