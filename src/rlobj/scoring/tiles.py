"""Sweeps over the vocabulary: every row against one tile of columns at a time, in place.

The outer loop runs over tiles of the vocabulary and each tile holds all N rows, because N is the
smaller side: the gradient of a tile of W is then one product, written once, and only the gradient
of the hidden states is accumulated. A tile is small enough to stay in the processor's cache.

Per row, with z the logits at the sampling temperature, m their maximum and e = exp(z − m), the
forward sweep carries up to four sums, none of which subtracts large numbers:

    mass = Σ e     slope = Σ e·(z − m)     square = Σ e²     square_slope = Σ e²·(z − m)

When a tile raises the maximum by −d, a sum Σ eⁿ·(z − m) becomes fⁿ·(Σ eⁿ·(z − m) + d·Σ eⁿ), with
f = exp(d).
From these: log π_y = z_y − m − log mass, entropy = log mass − slope/mass, Σ π² = square/mass².
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

MINIMUM_COLUMNS = 128
"""Narrower tiles would turn the matrix products into many thin ones."""


def tile_columns(rows: int, chunk_bytes: int, itemsize: int = 4) -> int:
    """Columns of a tile of `rows` rows that fits `chunk_bytes`, at least `MINIMUM_COLUMNS`.

    >>> tile_columns(2048, 8 << 20)
    1024
    """
    return max(MINIMUM_COLUMNS, chunk_bytes // (itemsize * max(rows, 1)))


@dataclass(frozen=True)
class Head:
    """A language-model head at a sampling temperature.

    With raw = W·h + b, the logits are `inner·raw`, or `outer·tanh(inner·raw)` under a soft cap.
    """

    weight: Tensor  # [V, H]
    bias: Tensor | None  # [V]
    inner: float
    outer: float | None
    columns: int  # of a tile

    def prepare(self, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        """The hidden states in the working type, times `inner`; [N, H]."""
        hidden = hidden.to(dtype)
        return hidden if self.inner == 1 else hidden * self.inner

    def spans(self, targets: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Each tile's span of the vocabulary, the rows that own a target in it, and where."""
        order = targets.argsort()
        edges = [*range(0, len(self.weight), self.columns), len(self.weight)]
        cuts = torch.searchsorted(targets[order], torch.tensor(edges, device=targets.device))
        cuts = cuts.tolist()
        for tile, (start, stop) in enumerate(pairwise(edges)):
            rows = order[cuts[tile] : cuts[tile + 1]]
            yield slice(start, stop), rows, targets[rows] - start

    def buffer(self, hidden: Tensor) -> Tensor:
        """Flat scratch memory for one tile."""
        return hidden.new_empty(len(hidden) * min(self.columns, len(self.weight)))

    def weight_tile(self, span: slice, dtype: torch.dtype) -> Tensor:
        """A tile of W in the working type; [v, H]."""
        return self.weight[span].to(dtype)

    def logits(self, hidden: Tensor, weight: Tensor, span: slice, out: Tensor) -> Tensor:
        """One tile of logits, [N, v], for prepared hidden states; tanh values under a soft cap.

        Products that write into a given tensor, here and below, are exempt from autocast.
        """
        out = _tile(out, len(hidden), len(weight))
        if self.bias is None:
            torch.mm(hidden, weight.T, out=out)
        else:
            bias = self.bias[span].to(hidden.dtype) * self.inner
            torch.addmm(bias, hidden, weight.T, out=out)
        return out if self.outer is None else out.tanh_()


@dataclass
class Sums:
    """What a forward sweep has gathered per row; every tensor is [N]."""

    maximum: Tensor
    mass: Tensor
    target: Tensor  # the target's logit minus the maximum
    slope: Tensor | None
    square: Tensor | None
    square_slope: Tensor | None
    tile_maxima: Tensor | None  # [tiles, N]

    def rescale(self, maximum: Tensor) -> None:
        """Move the sums to a new maximum."""
        shift = self.maximum - maximum
        factor = shift.exp()
        if self.slope is not None:
            self.slope.addcmul_(self.mass, shift).mul_(factor)
        if self.square is not None and self.square_slope is not None:
            self.square_slope.addcmul_(self.square, shift).mul_(factor).mul_(factor)
            self.square.mul_(factor).mul_(factor)
        self.mass.mul_(factor)
        self.maximum = maximum


def _tile(buffer: Tensor, rows: int, columns: int) -> Tensor:
    return buffer[: rows * columns].view(rows, columns)


def forward_sweep(
    head: Head,
    hidden: Tensor,
    targets: Tensor,
    *,
    slope: bool,
    square: bool,
    tile_maxima: bool,
) -> Sums:
    """One pass over the vocabulary.

    Args:
        head: The head.
        hidden: Prepared hidden states, [N, H].
        targets: Token ids, [N].
        slope: Also sum e·(z − m), for the entropy.
        square: Also sum e² and e²·(z − m); needs `slope`.
        tile_maxima: Also keep each row's largest logit in each tile, for `proxy_sweep`.
    """
    zeros = hidden.new_zeros(len(hidden))
    sums = Sums(
        maximum=torch.full_like(zeros, torch.finfo(hidden.dtype).min),
        mass=zeros.clone(),
        target=zeros.clone(),
        slope=zeros.clone() if slope else None,
        square=zeros.clone() if square else None,
        square_slope=zeros.clone() if square else None,
        tile_maxima=None,
    )
    maxima = []
    buffer = head.buffer(hidden)
    spare = head.buffer(hidden) if slope else buffer
    for span, owners, places in head.spans(targets):
        tile = head.logits(hidden, head.weight_tile(span, hidden.dtype), span, buffer)
        if head.outer is not None:
            tile.mul_(head.outer)
        sums.target[owners] = tile[owners, places]
        largest = tile.amax(1)
        maxima.append(largest)
        sums.rescale(torch.maximum(sums.maximum, largest))
        tile.sub_(sums.maximum[:, None])
        _accumulate(sums, tile, torch.exp(tile, out=_tile(spare, *tile.shape)))
    sums.target -= sums.maximum
    sums.tile_maxima = torch.stack(maxima) if tile_maxima else None
    return sums


def _accumulate(sums: Sums, shifted: Tensor, powers: Tensor) -> None:
    """Add one tile, z − m and exp(z − m), to the sums; both tiles are used up."""
    sums.mass += powers.sum(1)
    if sums.slope is not None:
        sums.slope += shifted.mul_(powers).sum(1)
    if sums.square is not None and sums.square_slope is not None:
        sums.square_slope += shifted.mul_(powers).sum(1)
        sums.square += powers.square_().sum(1)


def proxy_sweep(
    head: Head, hidden: Tensor, targets: Tensor, sums: Sums, threshold: float
) -> Tensor:
    """Σ exp(z − m) over the columns where z − m > threshold; [N].

    Which columns count is known only when the maximum is final, hence a second sweep. It computes
    only the (row, tile) pairs whose largest logit reaches the threshold: few where the policy is
    peaked; all of them, at the price of a second product, where it is flat.
    """
    assert sums.tile_maxima is not None
    kept = torch.zeros_like(sums.mass)
    buffer = head.buffer(hidden)
    reaches = sums.tile_maxima - sums.maximum > threshold
    for (span, _, _), reached in zip(head.spans(targets), reaches, strict=True):
        rows = reached.nonzero()[:, 0]
        if not len(rows):
            continue
        weight = head.weight_tile(span, hidden.dtype)
        tile = head.logits(hidden[rows], weight, span, buffer)
        if head.outer is not None:
            tile.mul_(head.outer)
        tile.sub_(sums.maximum[rows, None])
        torch.threshold_(tile, threshold, -torch.inf)
        kept[rows] += tile.exp_().sum(1)
    # The largest logit contributes exactly 1, whatever the rounding of its second computation.
    return kept.clamp_(min=1)


@dataclass(frozen=True)
class RowGradient:
    """The gradient of each row's logits, in the terms of its forward sweep; every tensor is [N].

    dz_k = target·1[k = y] + exp(z_k − m)·(constant + slope·(z_k − m))
    """

    maximum: Tensor
    target: Tensor
    constant: Tensor
    slope: Tensor | None

    @classmethod
    def of(
        cls,
        by_logprob: Tensor | None,
        by_entropy: Tensor | None,
        maximum: Tensor,
        mass: Tensor,
        slope: Tensor | None,
    ) -> RowGradient:
        """From the gradients of log π_y and of the entropy, and the sums of the forward sweep.

        dz_k = g·(1[k = y] − π_k) − g_H·π_k·(log π_k + H),   log π_k + H = z_k − m − slope/mass
        """
        target = torch.zeros_like(mass) if by_logprob is None else by_logprob
        if by_entropy is None or slope is None:
            return cls(maximum, target, -target / mass, None)
        constant = (by_entropy * slope / mass - target) / mass
        return cls(maximum, target, constant, -by_entropy / mass)

    def active(self) -> Tensor:
        """The rows whose gradient is not zero throughout."""
        active = self.target != 0
        if self.slope is not None:
            active |= self.slope != 0
        return active.nonzero()[:, 0]

    def take(self, rows: Tensor) -> RowGradient:
        """These rows alone."""
        slope = None if self.slope is None else self.slope[rows]
        return RowGradient(self.maximum[rows], self.target[rows], self.constant[rows], slope)

    def fill(self, shifted: Tensor, spare: Tensor) -> Tensor:
        """A tile of exp(z − m)·(constant + slope·(z − m)) from z − m; uses up both tiles."""
        if self.slope is None:
            return shifted.exp_().mul_(self.constant[:, None])
        powers = torch.exp(shifted, out=_tile(spare, *shifted.shape))
        return shifted.mul_(self.slope[:, None]).add_(self.constant[:, None]).mul_(powers)


@dataclass(frozen=True)
class HeadGradient:
    """Gradients to fill, each in the type of its parameter; None where it is not wanted."""

    hidden: Tensor | None  # [N, H], working type
    weight: Tensor | None  # [V, H]
    bias: Tensor | None  # [V]


def backward_sweep(
    head: Head, hidden: Tensor, targets: Tensor, rows: RowGradient, into: HeadGradient
) -> None:
    """One pass over the vocabulary that recomputes the tiles and fills the gradients.

    Args:
        head: The head.
        hidden: Prepared hidden states, [N, H].
        targets: Token ids, [N].
        rows: The gradient of each row's logits.
        into: `hidden` must come zeroed; `weight` and `bias` are written once, tile by tile.
    """
    buffer = head.buffer(hidden)
    spare = buffer if rows.slope is None and head.outer is None else head.buffer(hidden)
    for span, owners, places in head.spans(targets):
        weight = head.weight_tile(span, hidden.dtype)
        tile = head.logits(hidden, weight, span, buffer)
        caps = None
        if head.outer is not None:
            caps = tile.square().neg_().add_(1).mul_(head.outer)
            tile.mul_(head.outer)
        tile = rows.fill(tile.sub_(rows.maximum[:, None]), spare)
        tile[owners, places] += rows.target[owners]
        if caps is not None:
            tile.mul_(caps)
        if into.hidden is not None:
            into.hidden.addmm_(tile, weight, alpha=head.inner)
        if into.weight is not None:
            _write_product(into.weight[span], tile, hidden)
        if into.bias is not None:
            into.bias[span] = tile.sum(0) * head.inner


def _write_product(out: Tensor, tile: Tensor, hidden: Tensor) -> None:
    if out.dtype == tile.dtype:
        torch.mm(tile.T, hidden, out=out)
    else:
        out.copy_(torch.mm(tile.T, hidden, out=tile.new_empty(out.shape)))
