"""Sweeps over the vocabulary: every row against one tile of columns at a time, in place.

The outer loop runs over tiles of the vocabulary and each tile holds all N rows, because N is the
smaller side: the gradient of a tile of W is then one product, written once, and only the gradient
of the hidden states is accumulated. `rows` has the arithmetic of a tile, here are the products.

On a CPU products are those of float32 (float64) numbers and a tile is small enough to stay in the
cache. On a GPU half-precision numbers are multiplied as they are, the products summed and written
in float32; the gradient of a tile is rounded to bfloat16 for the products of the backward sweep.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.scoring.rows import Curve, RowGradient, Rows, Sums, TorchRows

MINIMUM_COLUMNS = 128
"""Narrower tiles would turn the matrix products into many thin ones; widths are multiples of it."""

MINIMUM_ROWS = 64
"""Tiles of whole rows are used from this many rows on, for the same reason."""


def tile_columns(rows: int, chunk_bytes: int, itemsize: int = 4) -> int:
    """Columns of a tile of `rows` rows that fits `chunk_bytes`, at least `MINIMUM_COLUMNS`.

    >>> tile_columns(2048, 8 << 20)
    1024
    """
    columns = chunk_bytes // (itemsize * max(rows, 1))
    return max(1, columns // MINIMUM_COLUMNS) * MINIMUM_COLUMNS


def whole_rows(rows: int, vocabulary: int, row_bytes: int, itemsize: int = 4) -> int:
    """How many rows of all logits fit `row_bytes`; 0 where that is fewer than are worth it.

    >>> whole_rows(32768, 151936, 512 << 20)
    883
    """
    fitting = min(rows, row_bytes // (itemsize * vocabulary))
    return fitting if fitting >= min(rows, MINIMUM_ROWS) else 0


@dataclass(frozen=True)
class Head:
    """A language-model head at a sampling temperature.

    With raw = Σ W·h + b over its factors, the logits are `inner·raw`, or `outer·tanh(inner·raw)`
    under a soft cap. One factor is the output embeddings with the hidden states; a second can be
    the high side of a low-rank correction with its low side's output.
    """

    weights: tuple[Tensor, ...]  # [V, H], [V, r]
    bias: Tensor | None  # [V]
    inner: float
    outer: float | None
    dtype: torch.dtype  # of tiles and sums
    rounded: torch.dtype  # to which hidden states and weights are rounded
    operand: torch.dtype  # in which they are then multiplied
    chunk_bytes: int  # of a tile
    row_bytes: int  # of a tile of whole rows

    @property
    def vocabulary(self) -> int:
        """V."""
        return len(self.weights[0])

    @property
    def as_stored(self) -> bool:
        """Are the weights multiplied as they are, without a copy in another type?"""
        kinds = {self.rounded, self.operand}
        return all(kinds == {weight.dtype} for weight in self.weights)

    @property
    def before(self) -> float:
        """The part of `inner` that the hidden states take; half-precision ones would be rounded."""
        return self.inner if self.operand == self.dtype else 1.0

    def prepare(self, hiddens: Sequence[Tensor]) -> list[Tensor]:
        """The hidden states of each factor as they are multiplied."""
        hiddens = [hidden.to(self.rounded).to(self.operand) for hidden in hiddens]
        return hiddens if self.before == 1 else [hidden * self.before for hidden in hiddens]

    def spans(self, columns: int) -> Iterator[slice]:
        """The tiles' spans of the vocabulary."""
        for start in range(0, self.vocabulary, columns):
            yield slice(start, min(start + columns, self.vocabulary))

    def columns(self, rows: int) -> int:
        """Of a tile of so many rows."""
        return min(tile_columns(rows, self.chunk_bytes, self.dtype.itemsize), self.vocabulary)

    def curve(self, span: slice) -> Curve:
        """From products to logits."""
        bias = None
        if self.bias is not None:
            bias = self.bias[span].to(self.dtype) * self.inner
            # −inf masks a token, but 0·(−inf) is no number, nor is V times the least one.
            bias = bias.clamp_(min=torch.finfo(self.dtype).min / 2**40)
        return Curve(self.inner / self.before, bias, self.outer)

    def operands(self, span: slice) -> list[Tensor]:
        """A tile of each factor's weight, as it is multiplied."""
        return [weight[span].to(self.rounded).to(self.operand) for weight in self.weights]

    def workspace(self, rows: int, columns: int) -> Rows:
        """What computes tiles of up to this size, with memory for one."""
        device = self.weights[0].device
        kind = row_work(device, self.dtype)
        return kind(rows, columns, torch.empty(0, dtype=self.dtype, device=device))


def row_work(device: torch.device, dtype: torch.dtype) -> type[Rows]:
    """What computes tiles: Triton's kernels on a GPU that has them, torch everywhere else."""
    if device.type == "cuda" and dtype == torch.float32 and importlib.util.find_spec("triton"):
        from rlobj.scoring.kernels import TritonRows

        return TritonRows
    return TorchRows


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out = left·right, summed in float32 at least. Like all `out=`, it is exempt from autocast."""
    if out.dtype == left.dtype:
        return torch.mm(left, right, out=out)
    if out.dtype == torch.float32 and left.itemsize == 2 and not left.is_cpu:
        return torch.mm(left, right, out_dtype=torch.float32, out=out)
    return out.copy_(torch.mm(left, right, out=left.new_empty(out.shape)))


def accumulate(into: Tensor, left: Tensor, right: Tensor, alpha: float = 1.0) -> Tensor:
    """into += alpha·left·right."""
    if into.dtype == left.dtype:
        return into.addmm_(left, right, alpha=alpha)
    return torch.addmm(into, left, right, alpha=alpha, out_dtype=into.dtype, out=into)


def forward_sweep(
    head: Head,
    hiddens: Sequence[Tensor],
    targets: Tensor,
    *,
    slope: bool,
    square: bool,
    threshold: float | None,
) -> Sums:
    """One pass over the vocabulary; `target` comes back relative to the maximum.

    With a threshold the columns that count are known only when a row's maximum is final. Where
    tiles of whole rows fit the budget that needs no second product; else `_kept` makes another
    sweep.

    Args:
        head: The head.
        hiddens: Prepared hidden states of its factors, [N, H], [N, r].
        targets: Token ids, [N].
        slope: Also sum e·(z − m), for the entropy.
        square: Also sum e² and e²·(z − m); needs `slope`.
        threshold: Also sum e where z − m > threshold, for the min-p proxy.
    """
    rows = len(targets)
    like = torch.empty(rows, dtype=head.dtype, device=targets.device)
    sums = Sums.of(like, slope=slope, square=square, kept=threshold is not None)
    if not rows:
        return sums
    whole = 0
    if threshold is not None and head.as_stored:  # else each part of the rows rounds all weights
        whole = whole_rows(rows, head.vocabulary, head.row_bytes, head.dtype.itemsize)
    columns = head.vocabulary if whole else head.columns(rows)
    work = head.workspace(whole or rows, columns)
    if whole:
        for start in range(0, rows, whole):
            part = slice(start, start + whole)
            parts = [hidden[part] for hidden in hiddens]
            _fold(head, work, columns, parts, targets[part], sums.part(part), threshold)
    elif threshold is None:
        _fold(head, work, columns, hiddens, targets, sums, None)
    else:
        tiles = len(range(0, head.vocabulary, columns))
        maxima = like.new_empty(tiles, rows)
        _fold(head, work, columns, hiddens, targets, sums, None, maxima)
        sums.kept = _kept(head, work, columns, hiddens, sums.maximum, maxima, threshold)
    sums.target -= sums.maximum
    return sums


def _fold(
    head: Head,
    work: Rows,
    columns: int,
    hiddens: Sequence[Tensor],
    targets: Tensor,
    sums: Sums,
    threshold: float | None,
    maxima: Tensor | None = None,
) -> None:
    """Add every tile to the sums; also each row's largest logit in each tile, [tiles, N]."""
    for index, span in enumerate(head.spans(columns)):
        tile = _products(work, hiddens, head.operands(span))
        sums.largest = None if maxima is None else maxima[index]
        work.fold(tile, head.curve(span), targets - span.start, sums, threshold)


def _products(work: Rows, hiddens: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    tile = work.tile(len(hiddens[0]), len(weights[0]))
    multiply(hiddens[0], weights[0].T, out=tile)
    for hidden, weight in zip(hiddens[1:], weights[1:], strict=True):
        accumulate(tile, hidden, weight.T)
    return tile


def _kept(
    head: Head,
    work: Rows,
    columns: int,
    hiddens: Sequence[Tensor],
    maximum: Tensor,
    maxima: Tensor,
    threshold: float,
) -> Tensor:
    """Σ exp(z − m) over the columns where z − m > threshold; [N].

    Only (row, tile) pairs whose largest logit reaches the threshold are computed again: few where
    the policy is peaked; all of them, at the price of a second product, where it is flat.
    """
    kept = torch.zeros_like(maximum)
    reaches = maxima - maximum > threshold
    for span, reached in zip(head.spans(columns), reaches, strict=True):
        rows = reached.nonzero()[:, 0]
        if len(rows):
            tile = _products(work, [hidden[rows] for hidden in hiddens], head.operands(span))
            kept[rows] += work.keep(tile, head.curve(span), maximum[rows], threshold)
    # The largest logit contributes exactly 1, whatever the rounding of its second computation.
    return kept.clamp_(min=1)


@dataclass(frozen=True)
class HeadGradient:
    """Gradients to fill; None where one is not wanted."""

    hiddens: list[Tensor | None]  # of each factor: [N, H], in the tiles' type
    weights: list[Tensor | None]  # of each factor: [V, H], in the weight's type
    bias: Tensor | None  # [V]


def backward_sweep(
    head: Head, hiddens: Sequence[Tensor], targets: Tensor, rows: RowGradient, into: HeadGradient
) -> None:
    """One pass over the vocabulary that recomputes the tiles and fills the gradients.

    Args:
        head: The head.
        hiddens: Prepared hidden states of its factors, [N, H], [N, r].
        targets: Token ids, [N].
        rows: The gradient of each row's logits.
        into: `hiddens` must come zeroed; `weights` and `bias` are written once, tile by tile.
    """
    if not len(targets):
        for written in (*into.weights, into.bias):
            if written is not None:
                written.zero_()
        return
    columns = head.columns(len(targets))
    work = head.workspace(len(targets), columns)
    for span in head.spans(columns):
        weights = head.operands(span)
        tile = _products(work, hiddens, weights)
        tile = work.differentiate(tile, head.curve(span), targets - span.start, rows, head.operand)
        for by_hidden, weight in zip(into.hiddens, weights, strict=True):
            if by_hidden is not None:
                accumulate(by_hidden, tile, weight, alpha=head.before)
        for by_weight, hidden in zip(into.weights, hiddens, strict=True):
            if by_weight is not None:
                multiply(tile.T, hidden, out=by_weight[span])
        if into.bias is not None:
            into.bias[span] = tile.sum(0, dtype=head.dtype) * head.before
