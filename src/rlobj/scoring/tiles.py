"""Sweeps over the vocabulary: all rows and one tile of the vocabulary's columns at a time.

A tile has all N rows, because N is smaller than V. So the gradient of a tile of W is one matrix
product that is written once, and only the gradient of the hidden states is accumulated. This module
has the matrix products; `rows` has the operations on the rows of a tile.

On a CPU the products are float32 (or float64), and a tile is small enough for the cache. On a GPU
half-precision numbers are multiplied as they are, and the products are summed and stored in
float32. The gradient of a tile is rounded to bfloat16 for the products of the backward sweep.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rlobj.scoring.rows import Curve, RowGradient, Sums, TorchRows

MINIMUM_COLUMNS = 128
"""Tiles have a multiple of this number of columns: narrow matrix products are slow."""


def tile_columns(rows: int, chunk_bytes: int, itemsize: int = 4) -> int:
    """Columns of a tile of `rows` rows that fits `chunk_bytes`, at least `MINIMUM_COLUMNS`.

    >>> tile_columns(2048, 8 << 20)
    1024
    """
    columns = chunk_bytes // (itemsize * max(rows, 1))
    return max(1, columns // MINIMUM_COLUMNS) * MINIMUM_COLUMNS


@dataclass(frozen=True)
class Head:
    """A language-model head at a sampling temperature.

    With raw = W·h + b, the logits are `inner·raw`, or `outer·tanh(inner·raw)` with a soft cap.
    """

    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    inner: float
    outer: float | None
    dtype: torch.dtype  # of tiles and sums
    rounded: torch.dtype  # hidden states and weights are rounded to it,
    operand: torch.dtype  # and then multiplied in it
    chunk_bytes: int  # of a tile

    @property
    def before(self) -> float:
        """The factor that multiplies the hidden states; 1 if that would round them."""
        return self.inner if self.operand == self.dtype else 1.0

    def prepare(self, hidden: Tensor) -> Tensor:
        """The hidden states in the type of the products."""
        hidden = hidden.to(self.rounded).to(self.operand)
        return hidden if self.before == 1 else hidden * self.before

    def first(self, vocabulary: int) -> "Head":
        """The head of the first tokens of the vocabulary."""
        bias = None if self.bias is None else self.bias[:vocabulary]
        return replace(self, weight=self.weight[:vocabulary], bias=bias)

    def spans(self, columns: int) -> Iterator[slice]:
        """The range of the vocabulary of each tile."""
        vocabulary = len(self.weight)
        for start in range(0, vocabulary, columns):
            yield slice(start, min(start + columns, vocabulary))

    def columns(self, rows: int) -> int:
        """The number of columns of a tile with this number of rows."""
        return min(tile_columns(rows, self.chunk_bytes, self.dtype.itemsize), len(self.weight))

    def curve(self, span: slice | Tensor) -> Curve:
        """The function from the products of a tile, or of some token ids, to logits."""
        bias = None
        if self.bias is not None:
            bias = self.bias[span].to(self.dtype) * self.inner
            # −inf removes a token. It is replaced by a finite number, since 0·(−inf) is nan.
            bias = bias.clamp_(min=torch.finfo(self.dtype).min / 2**40)
        return Curve(self.inner / self.before, bias, self.outer)

    def rows(self, span: slice | Tensor) -> Tensor:
        """A tile of the weight, or the rows of some token ids, in the type of the products."""
        return self.weight[span].to(self.rounded).to(self.operand)

    def workspace(self, rows: int, columns: int) -> TorchRows:
        """The operations on tiles of up to this size, with memory for one tile."""
        kind = row_work(self.weight.device, self.dtype)
        return kind(rows, columns, self.weight.new_empty(0, dtype=self.dtype))


def row_work(device: torch.device, dtype: torch.dtype) -> type[TorchRows]:
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


@dataclass(frozen=True)
class Keep:
    """The tokens that the min-p proxy keeps: those with z − m > threshold."""

    threshold: float
    relative: bool  # m is the row's maximum; else its log mass, so that exp(z − m) is π


def forward_sweep(
    head: Head, hidden: Tensor, targets: Tensor, *, slope: bool, square: bool, keep: Keep | None
) -> Sums:
    """The sums of all rows over the vocabulary; their `target` is relative to the maximum.

    Args:
        head: the head.
        hidden: prepared hidden states, [N, H].
        targets: token ids, [N].
        slope: also sum e·(z − m), for the entropy.
        square: also sum e² and e²·(z − m); needs `slope`.
        keep: also sum the mass that the min-p proxy keeps.
    """
    rows = len(targets)
    columns = head.columns(rows)
    like = torch.empty(rows, dtype=head.dtype, device=targets.device)
    sums = Sums.of(like, slope=slope, square=square)
    if not rows:
        sums.kept = None if keep is None else like
        return sums
    work, spans = head.workspace(rows, columns), list(head.spans(columns))
    maxima = None if keep is None else like.new_empty(len(spans), rows)
    for index, span in enumerate(spans):
        tile = products(work, hidden, head.rows(span))
        sums.largest = None if maxima is None else maxima[index]
        work.fold(tile, head.curve(span), targets - span.start, sums)
    if keep is not None and maxima is not None:
        sums.kept = _kept(head, work, hidden, sums, maxima, keep)
    sums.target -= sums.maximum
    return sums


def products(work: TorchRows, hidden: Tensor, weight: Tensor) -> Tensor:
    """A tile of products, [N, v], in the memory of the tile before."""
    return multiply(hidden, weight.T, out=work.tile(len(hidden), len(weight)))


def _kept(
    head: Head, work: TorchRows, hidden: Tensor, sums: Sums, maxima: Tensor, keep: Keep
) -> Tensor:
    """Σ exp(z − m) over the tokens that are kept, [N], in a second sweep.

    Only rows whose largest logit in a tile is above the threshold are computed again. These are few
    for a low entropy, and all for a flat distribution.

    Args:
        head: the head.
        work: the operations of the first sweep.
        hidden: prepared hidden states, [N, H].
        sums: of the first sweep.
        maxima: each row's largest logit in each tile, [tiles, N].
        keep: the tokens.
    """
    zero = sums.maximum if keep.relative else sums.maximum + sums.mass.log()
    kept = torch.zeros_like(zero)
    columns = head.columns(len(hidden))
    for span, reached in zip(head.spans(columns), maxima - zero > keep.threshold, strict=True):
        rows = reached.nonzero()[:, 0]
        if len(rows):
            tile = products(work, hidden[rows], head.rows(span))
            shifted = head.curve(span).logits(tile).sub_(zero[rows, None])
            kept[rows] += torch.threshold_(shifted, keep.threshold, -torch.inf).exp_().sum(1)
    # The largest logit contributes 1, also if it was rounded differently.
    return kept.clamp_(min=1) if keep.relative else kept


def backward_sweep(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    rows: RowGradient,
    by_hidden: Tensor | None,
    by_weight: Tensor | None,
    by_bias: Tensor | None,
) -> None:
    """Compute the tiles again and write the gradients; None if one is not needed.

    Args:
        head: the head.
        hidden: prepared hidden states, [N, H].
        targets: token ids, [N].
        rows: the gradient of each row's logits.
        by_hidden: [N, H], in the tiles' type; must be zero before.
        by_weight: [V, H], in the weight's type; is overwritten.
        by_bias: [V]; is overwritten.
    """
    if not len(targets):
        for written in (by_weight, by_bias):
            if written is not None:
                written.zero_()
        return
    columns = head.columns(len(targets))
    work = head.workspace(len(targets), columns)
    for span in head.spans(columns):
        weight = head.rows(span)
        tile = products(work, hidden, weight)
        tile = work.differentiate(tile, head.curve(span), targets - span.start, rows, head.operand)
        if by_hidden is not None:
            accumulate(by_hidden, tile, weight, alpha=head.before)
        if by_weight is not None:
            multiply(tile.T, hidden, out=by_weight[span])
        if by_bias is not None:
            by_bias[span] = tile.sum(0, dtype=head.dtype) * head.before
