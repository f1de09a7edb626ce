"""Sweeps over the vocabulary: all rows and one tile of the vocabulary's columns at a time.

A tile has all N rows, because N is smaller than V. So the gradient of a tile of W is one matrix
product that is written once, and only the gradient of the hidden states is accumulated. This module
has the matrix products; `rows` has the operations on the rows of a tile.

On a CPU the products are float32 (or float64), and a tile is small enough for the cache. On a GPU
half-precision numbers are multiplied as they are, and the products are summed and stored in
float32. The gradient of a tile is rounded to bfloat16 for the products of the backward sweep.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rlobj.scoring.rows import Curve, RowGradient, Rows, Sums, TorchRows

MINIMUM_COLUMNS = 128
"""Tiles have a multiple of this number of columns: narrow matrix products are slow."""

MINIMUM_ROWS = 64
"""Tiles of whole rows have at least this number of rows, for the same reason."""


def tile_columns(rows: int, chunk_bytes: int, itemsize: int = 4) -> int:
    """Columns of a tile of `rows` rows that fits `chunk_bytes`, at least `MINIMUM_COLUMNS`.

    >>> tile_columns(2048, 8 << 20)
    1024
    """
    columns = chunk_bytes // (itemsize * max(rows, 1))
    return max(1, columns // MINIMUM_COLUMNS) * MINIMUM_COLUMNS


def whole_rows(rows: int, vocabulary: int, row_bytes: int, itemsize: int = 4) -> int:
    """The number of whole rows of logits that fit `row_bytes`; 0 if it is below `MINIMUM_ROWS`.

    >>> whole_rows(32768, 151936, 512 << 20)
    883
    """
    fitting = min(rows, row_bytes // (itemsize * vocabulary))
    return fitting if fitting >= min(rows, MINIMUM_ROWS) else 0


@dataclass(frozen=True)
class Head:
    """A language-model head at a sampling temperature.

    With raw = Σ W·h + b over its factors, the logits are `inner·raw`, or `outer·tanh(inner·raw)`
    with a soft cap. The first factor is the output embeddings and the hidden states. A second
    factor is a low-rank correction: B and u of `score_tokens`.
    """

    weights: tuple[Tensor, ...]  # [V, H], [V, r]
    bias: Tensor | None  # [V]
    inner: float
    outer: float | None
    dtype: torch.dtype  # of tiles and sums
    rounded: torch.dtype  # hidden states and weights are rounded to it,
    operand: torch.dtype  # and then multiplied in it
    chunk_bytes: int  # of a tile
    row_bytes: int  # of a tile of whole rows

    @property
    def vocabulary(self) -> int:
        """V."""
        return len(self.weights[0])

    @property
    def as_stored(self) -> bool:
        """Whether the weights are multiplied without a copy in another type."""
        kinds = {self.rounded, self.operand}
        return all(kinds == {weight.dtype} for weight in self.weights)

    @property
    def before(self) -> float:
        """The factor that multiplies the hidden states; 1 if that would round them."""
        return self.inner if self.operand == self.dtype else 1.0

    def prepare(self, hiddens: Sequence[Tensor]) -> list[Tensor]:
        """The hidden states of each factor in the type of the products."""
        hiddens = [hidden.to(self.rounded).to(self.operand) for hidden in hiddens]
        return hiddens if self.before == 1 else [hidden * self.before for hidden in hiddens]

    def spans(self, columns: int) -> Iterator[slice]:
        """The range of the vocabulary of each tile."""
        for start in range(0, self.vocabulary, columns):
            yield slice(start, min(start + columns, self.vocabulary))

    def columns(self, rows: int) -> int:
        """The number of columns of a tile with this number of rows."""
        return min(tile_columns(rows, self.chunk_bytes, self.dtype.itemsize), self.vocabulary)

    def curve(self, span: slice) -> Curve:
        """The function from the products of a tile to its logits."""
        bias = None
        if self.bias is not None:
            bias = self.bias[span].to(self.dtype) * self.inner
            # −inf removes a token. It is replaced by a finite number, since 0·(−inf) is nan.
            bias = bias.clamp_(min=torch.finfo(self.dtype).min / 2**40)
        return Curve(self.inner / self.before, bias, self.outer)

    def operands(self, span: slice) -> list[Tensor]:
        """A tile of each factor's weight, in the type of the products."""
        return [weight[span].to(self.rounded).to(self.operand) for weight in self.weights]

    def workspace(self, rows: int, columns: int) -> Rows:
        """The operations on tiles of up to this size, with memory for one tile."""
        device = self.weights[0].device
        kind = row_work(device, self.dtype)
        return kind(rows, columns, torch.empty(0, dtype=self.dtype, device=device))


def row_work(device: torch.device, dtype: torch.dtype) -> type[Rows]:
    """The class for operations on tiles: Triton's on a GPU if it is installed, else torch's."""
    if device.type == "cuda" and dtype == torch.float32 and importlib.util.find_spec("triton"):
        from rlobj.scoring.kernels import TritonRows

        return TritonRows
    return TorchRows


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out = left·right, summed in float32 at least; `out=` is not affected by autocast."""
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
    relative: bool = True,
) -> Sums:
    """The sums of all rows over the vocabulary; their `target` is relative to the maximum.

    The threshold is relative to the maximum of a whole row, or to its log mass. If it is relative
    to the maximum and tiles of whole rows fit the budget, one sweep is enough; otherwise `_kept`
    makes a second one.

    Args:
        head: the head.
        hiddens: prepared hidden states of its factors, [N, H], [N, r].
        targets: token ids, [N].
        slope: also sum e·(z − m), for the entropy.
        square: also sum e² and e²·(z − m); needs `slope`.
        threshold: also sum e over the columns with z − m > threshold, for the min-p proxy.
        relative: m is the row's maximum; else its log mass, so that e is π in this sum.
    """
    rows = len(targets)
    like = torch.empty(rows, dtype=head.dtype, device=targets.device)
    sums = Sums.of(like, slope=slope, square=square, kept=threshold is not None)
    if not rows:
        return sums
    whole = 0
    if (
        threshold is not None and relative and head.as_stored
    ):  # else each part of the rows would convert all weights
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
        zero = sums.maximum if relative else sums.maximum + sums.mass.log()
        sums.kept = _kept(head, work, columns, hiddens, zero, maxima, threshold)
        if relative:  # the largest logit contributes 1, also if it was rounded differently
            sums.kept.clamp_(min=1)
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
    """Add all tiles to the sums; write each row's largest logit in each tile to `maxima`."""
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
    """Σ exp(z − m) over the columns with z − m > threshold, [N]; `maximum` is m.

    Only rows whose largest logit in a tile is above the threshold are computed again. These are few
    for a low entropy, and all for a flat distribution.
    """
    kept = torch.zeros_like(maximum)
    reaches = maxima - maximum > threshold
    for span, reached in zip(head.spans(columns), reaches, strict=True):
        rows = reached.nonzero()[:, 0]
        if len(rows):
            tile = _products(work, [hidden[rows] for hidden in hiddens], head.operands(span))
            kept[rows] += work.keep(tile, head.curve(span), maximum[rows], threshold)
    return kept


@dataclass(frozen=True)
class HeadGradient:
    """The gradients to compute; None if one is not needed."""

    hiddens: list[Tensor | None]  # of each factor: [N, H], in the tiles' type
    weights: list[Tensor | None]  # of each factor: [V, H], in the weight's type
    bias: Tensor | None  # [V]


def backward_sweep(
    head: Head, hiddens: Sequence[Tensor], targets: Tensor, rows: RowGradient, into: HeadGradient
) -> None:
    """Compute the tiles again and write the gradients.

    Args:
        head: the head.
        hiddens: prepared hidden states of its factors, [N, H], [N, r].
        targets: token ids, [N].
        rows: the gradient of each row's logits.
        into: the gradients to write; `hiddens` must be zero before, the others are overwritten.
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
