"""Rollouts of several rows: what an agent did for one prompt, wherever the tables of its rows are.

A row is one sequence that the policy read and wrote. What a paper writes as i is a rollout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import statistics
from rlobj.objectives.statistics import Comm


@dataclass(frozen=True)
class Rollouts:
    """The rollouts of all ranks, as one rank sees them.

    Attributes:
        number: of the rollout of each row of this rank, from 0, the same on all ranks, int [B].
        first: the rows of this rank that stand for their rollouts, bool [B]; a rollout has one of
            these on one rank.
        count: the number of rollouts, R.
        comm: the process group.
    """

    number: Tensor
    first: Tensor
    count: int
    comm: Comm

    @classmethod
    def of(cls, ids: Tensor, comm: Comm, rows: Tensor | None = None, **columns: Tensor) -> Rollouts:
        """The rollouts with these ids, int [B]; called by all ranks together.

        Args:
            ids: of the rollout of each row.
            comm: the process group.
            rows: the ids of the rows, for messages; needed with columns.
            columns: what all rows of a rollout must have the same value of, each [B] or [B, K].

        Raises:
            BatchError: two rows of a rollout differ in a column; names both, on all ranks.
        """
        every, start = statistics.gather(ids, comm)
        names, number = every.unique(return_inverse=True)
        places, mine = torch.arange(len(every), device=ids.device), slice(start, start + len(ids))
        stands = places.new_full(names.shape, len(places)).scatter_reduce(0, number, places, "amin")
        first = stands[number]
        named = every if rows is None else statistics.gather(rows, comm)[0]
        for name, column in columns.items():
            values, _ = statistics.gather(column, comm)
            same = (values == values[first]) | (values.isnan() & values[first].isnan())
            same = same.all(1) if same.dim() == 2 else same
            for place in (~same).nonzero().flatten().tolist():
                one, other = (
                    f"{values[at].squeeze().tolist()} at response {int(named[at])}"
                    for at in (first[place], place)
                )
                raise BatchError(
                    f"column '{name}' is {one} and {other}, rows of rollout "
                    f"{int(every[place])}; expected the same"
                )
        return cls(number[mine], (first == places)[mine], len(names), comm)

    def any(self, mask: Tensor) -> Tensor:
        """Whether any row of the rollout is True, bool [B] -> [B]."""
        return statistics.count_by(mask, self.number, self.count, self.comm)[self.number] > 0

    def sum(self, numbers: Tensor) -> Tensor:
        """Σ of whole numbers over the rows of each rollout, [B] -> float64 [R]."""
        sums = numbers.new_zeros(self.count, dtype=torch.float64)
        return self.comm.sum(sums.index_add(0, self.number, numbers.double()))

    def once(self, values: Tensor) -> Tensor:
        """The value of each rollout, which all its rows have: float64 [B, ...] -> [R, ...]."""
        table = values.new_zeros((self.count, *values.shape[1:]))
        table[self.number[self.first]] = values[self.first]
        return self.comm.sum(table)


def check_turns(rollouts: Tensor, turns: Tensor) -> None:
    """Check that each turn of a rollout lies in one row.

    Args:
        rollouts: the id of the rollout of each turn of a row, int [T].
        turns: its number, int [T].

    Raises:
        BatchError: two rows of a rollout have a turn of one number.
    """
    pairs, rows = torch.stack([rollouts, turns], 1).unique(dim=0, return_counts=True)
    for rollout, turn in pairs[rows > 1].tolist():
        raise BatchError(
            f"column 'turn' is {turn} in several rows of rollout {rollout}; count the turns "
            "through all its rows"
        )
