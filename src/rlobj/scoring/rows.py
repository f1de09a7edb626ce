"""Sums over the rows of a tile of logits, and their gradient.

For each row, z are the logits at the sampling temperature, m is their maximum and e = exp(z − m).
A sweep computes up to four sums. None of them is a difference of large numbers:

    mass = Σ e     slope = Σ e·(z − m)     square = Σ e²     square_slope = Σ e²·(z − m)

If a tile increases the maximum by −d, a sum Σ eⁿ·(z − m) becomes fⁿ·(Σ eⁿ·(z − m) + d·Σ eⁿ) with
f = exp(d). The scores are log π_y = z_y − m − log mass, entropy = log mass − slope/mass and
Σ π² = square/mass².

`TorchRows` has the operations on one tile, with torch, in blocks that fit the processor's cache.
`rlobj.scoring.kernels.TritonRows` makes them with one kernel launch per tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

BLOCK_ELEMENTS = 1 << 18
"""Logits in one block of `TorchRows` on a CPU: 1 MiB, and 1 MiB for temporary values."""


@dataclass(frozen=True)
class Curve:
    """The logits of a tile of products x: factor·x + bias, or cap·tanh(factor·x + bias)."""

    factor: float
    bias: Tensor | None  # [v]
    cap: float | None

    def linear(self, products: Tensor) -> Tensor:
        """factor·x + bias, in place."""
        if self.factor != 1:
            products.mul_(self.factor)
        return products if self.bias is None else products.add_(self.bias)

    def logits(self, products: Tensor) -> Tensor:
        """The logits, in place."""
        linear = self.linear(products)
        return linear if self.cap is None else linear.tanh_().mul_(self.cap)


@dataclass
class Sums:
    """The sums of a forward sweep for each row; each is [N], or None if it is not requested."""

    maximum: Tensor
    mass: Tensor
    target: Tensor  # the target's logit
    slope: Tensor | None = None
    square: Tensor | None = None
    square_slope: Tensor | None = None
    largest: Tensor | None = None  # the largest logit of the last tile
    kept: Tensor | None = None  # Σ e over the tokens of the min-p proxy, from a second sweep

    @classmethod
    def of(cls, like: Tensor, *, slope: bool, square: bool) -> "Sums":
        """The sums before the first tile, for the rows of `like`."""

        lowest, size = torch.finfo(like.dtype).min, len(like)
        sums = cls(like.new_full((size,), lowest), like.new_zeros(size), like.new_zeros(size))
        if slope:
            sums.slope = like.new_zeros(size)
        if square:
            sums.square, sums.square_slope = like.new_zeros(size), like.new_zeros(size)
        return sums

    def part(self, rows: slice) -> "Sums":
        """The sums of some rows, in the same memory."""
        columns = (getattr(self, field.name) for field in fields(self))
        return Sums(*(None if column is None else column[rows] for column in columns))  # type: ignore[arg-type]

    def rescale(self, maximum: Tensor) -> None:
        """Change the sums to a new maximum."""
        shift = self.maximum - maximum
        factor = shift.exp()
        if self.slope is not None:
            self.slope.addcmul_(self.mass, shift).mul_(factor)
        if self.square is not None and self.square_slope is not None:
            self.square_slope.addcmul_(self.square, shift).mul_(factor).mul_(factor)
            self.square.mul_(factor).mul_(factor)
        self.mass.mul_(factor)
        self.maximum.copy_(maximum)


@dataclass(frozen=True)
class RowGradient:
    """The gradient of each row's logits, from the sums of the forward sweep; each tensor is [N].

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
    ) -> "RowGradient":
        """The gradient from those of log π_y and of the entropy, and the forward sweep's sums.

        dz_k = g·(1[k = y] − π_k) − g_H·π_k·(log π_k + H),   log π_k + H = z_k − m − slope/mass
        """
        # A gradient can be an expanded tensor; kernels need contiguous memory.
        target = torch.zeros_like(mass) if by_logprob is None else by_logprob.contiguous()
        if by_entropy is None or slope is None:
            return cls(maximum, target, -target / mass, None)
        constant = (by_entropy * slope / mass - target) / mass
        # 0 also if the mass is nan: such a row has no gradient.
        by_slope = torch.where(by_entropy == 0, 0, -by_entropy / mass)
        return cls(maximum, target, constant, by_slope)

    def with_gradient(self) -> Tensor:
        """The indices of the rows whose gradient is not zero."""
        nonzero = self.target != 0
        if self.slope is not None:
            nonzero |= self.slope != 0
        return nonzero.nonzero()[:, 0]

    def take(self, rows: Tensor | slice) -> "RowGradient":
        """The gradient of some rows."""
        slope = None if self.slope is None else self.slope[rows]
        return RowGradient(self.maximum[rows], self.target[rows], self.constant[rows], slope)


class TorchRows:
    """The operations of a sweep on one tile of products, [n, v]. They may overwrite the tile.

    Targets are columns of the tile; if it is below 0 or not below v, the target is in another tile.

    Args:
        rows: number of rows of the largest tile.
        columns: number of columns of the largest tile.
        like: a tensor with the type and the device of the tiles.
    """

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        self._block = max(1, rows if like.is_cuda else BLOCK_ELEMENTS // max(columns, 1))
        self._block_size = min(self._block, rows) * columns
        self._spare: Tensor | None = None
        # On a GPU rows start at multiples of 16 elements, for fast products and kernels.
        self._columns = columns + (-columns % 16 if like.is_cuda else 0)
        self._tile = like.new_empty(rows * self._columns)

    def tile(self, rows: int, columns: int) -> Tensor:
        """Memory for a tile, [rows, columns]."""
        stride = self._columns if self._tile.is_cuda else columns
        return self._tile[: rows * stride].view(rows, stride)[:, :columns]

    def fold(self, tile: Tensor, curve: Curve, targets: Tensor, sums: Sums) -> None:
        """Add a tile to the sums."""
        for rows in self._blocks(tile):
            self._fold(curve.logits(tile[rows]), targets[rows], sums.part(rows))

    def _fold(self, logits: Tensor, targets: Tensor, sums: Sums) -> None:
        owned, column = _target_columns(targets, logits)
        sums.target.copy_(torch.where(owned, logits.gather(1, column)[:, 0], sums.target))
        largest = logits.amax(1)
        if sums.largest is not None:
            sums.largest.copy_(largest)
        sums.rescale(torch.maximum(sums.maximum, largest))
        shifted = logits.sub_(sums.maximum[:, None])
        powers = shifted.exp_() if sums.slope is None else self._exp(shifted)
        sums.mass += powers.sum(1)
        if sums.slope is not None:
            sums.slope += shifted.mul_(powers).sum(1)
        if sums.square is not None and sums.square_slope is not None:
            sums.square_slope += shifted.mul_(powers).sum(1)
            sums.square += torch.mul(powers, powers, out=shifted).sum(1)

    def differentiate(
        self, tile: Tensor, curve: Curve, targets: Tensor, gradient: RowGradient, dtype: torch.dtype
    ) -> Tensor:
        """The gradient of a tile of products in the given type, [n, v]."""
        for rows in self._blocks(tile):
            self._differentiate(tile[rows], curve, targets[rows], gradient.take(rows))
        return tile.to(dtype)

    def _differentiate(
        self, products: Tensor, curve: Curve, targets: Tensor, gradient: RowGradient
    ) -> None:
        linear = curve.linear(products)
        bend = None
        if curve.cap is not None:
            linear.tanh_()
            bend = linear.square().neg_().add_(1).mul_(curve.cap)
            linear.mul_(curve.cap)
        shifted = linear.sub_(gradient.maximum[:, None])
        constant = gradient.constant[:, None]
        if gradient.slope is None:
            shifted.exp_().mul_(constant)
        else:
            powers = self._exp(shifted)
            torch.addcmul(constant, shifted, gradient.slope[:, None], out=shifted).mul_(powers)
        owned, column = _target_columns(targets, products)
        target = torch.where(owned, gradient.target, 0)
        products.scatter_add_(1, column, target[:, None])
        if bend is not None:
            products.mul_(bend)
        if curve.factor != 1:
            products.mul_(curve.factor)

    def _blocks(self, tile: Tensor) -> Iterator[slice]:
        rows = max(1, self._block_size // max(tile.shape[1], 1))
        for start in range(0, len(tile), rows):
            yield slice(start, min(start + rows, len(tile)))

    def _exp(self, shifted: Tensor) -> Tensor:
        if self._spare is None:
            self._spare = shifted.new_empty(self._block_size)
        return torch.exp(shifted, out=self._spare[: shifted.numel()].view(shifted.shape))


def _target_columns(targets: Tensor, tile: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each row's target is in the tile, [n], and a valid column for each row, [n, 1]."""
    columns = tile.shape[1]
    return (targets >= 0) & (targets < columns), targets.clamp(0, columns - 1)[:, None]
