"""The rows of an update that go through the model: the tokens with gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlobj.objectives.tokens import TokenBatch
from rlobj.training.rollouts.sharding import Sequences


@dataclass(frozen=True)
class GradientRows:
    """The rows of a mini-batch that an update trains on, and the responses they belong to.

    Attributes:
        table: the mini-batch.
        rows: the rows with gradient, bool [N].
        current: the policy's columns of the table are those of its present weights.
        cut: a response may be cut after its last row with gradient: no token reads a later one.
    """

    table: TokenBatch
    rows: Tensor
    current: bool
    cut: bool

    def trained(self) -> list[int]:
        """The responses with such rows; all responses if all rows have a gradient."""
        return self._with_gradient().nonzero()[:, 0].tolist()

    def skipped(self) -> list[int]:
        """The other responses, which do not go through the model."""
        return (~self._with_gradient()).nonzero()[:, 0].tolist()

    def _with_gradient(self) -> Tensor:
        return self.table.any_by_response(self.rows) | bool(self.rows.all())

    def spans(self) -> list[int]:
        """The number of tokens of each response up to its last row with gradient."""
        if not self.cut:
            return self.table.lengths.tolist()
        ends = (self.table.positions + 1) * self.rows
        zeros = torch.zeros_like(self.table.lengths)
        return zeros.scatter_reduce(0, self.table.responses, ends, "amax").tolist()

    def inputs(
        self, sequences: Sequences
    ) -> tuple[list[int], list[tuple[Sequence[int], Sequence[int]]], list[NDArray[numpy.bool_]]]:
        """What goes through the model: the trained responses, each cut to its span.

        Args:
            sequences: of all responses of the mini-batch.

        Returns:
            Their numbers, their token ids, and which of their tokens are rows with gradient.
        """
        spans, trained = self.spans(), self.trained()
        rows, starts = self.rows.cpu().numpy(), self.table.starts.tolist()
        inputs = [(sequences[i][0], sequences[i][1][: spans[i]]) for i in trained]
        return trained, inputs, [rows[starts[i] : starts[i] + spans[i]] for i in trained]

    def places(self, responses: Sequence[int]) -> Tensor:
        """The rows with gradient of some responses, int [M]."""
        rows = self.table.rows(responses)
        return rows[self.rows[rows]]

    def part(self, responses: Sequence[int]) -> GradientRows:
        """The rows of some responses."""
        rows = self.rows[self.table.rows(responses)]
        return replace(self, table=self.table.select(responses, 0), rows=rows)

    def filled(self, scores: dict[str, Tensor]) -> TokenBatch:
        """The table with the scores of the rows with gradient.

        Current values stay as they are, and only get the gradient of the scores. The rules have
        read these values, and scores from another micro-batch may be rounded differently.
        """
        places = self.rows.nonzero()[:, 0]
        columns: dict[str, Any] = {}
        for name, values in scores.items():
            if len(places) == len(self.rows) and not self.current:
                columns[name] = values
                continue
            column = self.table.column(name, "the update").detach()
            if self.current:
                values = column[places] + (values - values.detach())
            columns[name] = column.index_copy(0, places, values)
        return self.table.with_columns(columns)
