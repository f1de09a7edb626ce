"""The rows of an update that go through the model: those that the loss has a gradient in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlobj.tokens import TokenBatch

__all__ = ["Needed"]


@dataclass(frozen=True)
class Needed:
    """Rows of a mini-batch that an update needs, and what that leaves of its responses.

    Attributes:
        table: the mini-batch; where a row is not needed, its columns of the policy are right.
        rows: bool [N].
    """

    table: TokenBatch
    rows: Tensor

    def trained(self) -> list[int]:
        """The responses with such rows, and those of no row if all rows are needed."""
        return self._found().nonzero()[:, 0].tolist()

    def left(self) -> list[int]:
        """The other responses."""
        return (~self._found()).nonzero()[:, 0].tolist()

    def _found(self) -> Tensor:
        return self.table.any_by_response(self.rows) | bool(self.rows.all())

    def spans(self) -> list[int]:
        """Tokens of each response up to the last that is needed, which reads none after it."""
        ends = (self.table.positions + 1) * self.rows
        zeros = torch.zeros_like(self.table.lengths)
        return zeros.scatter_reduce(0, self.table.responses, ends, "amax").tolist()

    def part(self, responses: Sequence[int]) -> Needed:
        """Of some responses."""
        return Needed(self.table.select(responses, 0), self.rows[self.table.rows(responses)])

    def mask(self) -> Tensor:
        """Which tokens of the responses, cut to their spans, are scored, bool [Σ spans]."""
        spans = torch.tensor(self.spans(), device=self.rows.device)
        return self.rows[self.table.positions < self.table.spread(spans)]

    def filled(self, scores: dict[str, Tensor]) -> TokenBatch:
        """The table with the scores of the rows that are needed."""
        if bool(self.rows.all()):
            return self.table.replace(**scores)
        places = self.rows.nonzero()[:, 0]
        columns: dict[str, Any] = {
            name: getattr(self.table, name).detach().index_copy(0, places, values)
            for name, values in scores.items()
        }
        return self.table.replace(**columns)
