"""The operations of `rlobj.scoring.rows` as Triton kernels, with one program per row.

    _fold_kernel           adds a tile to the sums of its rows
    _differentiate_kernel  the gradient of the products, in place or in half precision

A program processes its row in blocks. It updates the same sums for each block as the torch version
does for each tile. On one H200, a tile is read at 3.3 TB/s (benchmarks/results/gpu.md).
"""

from typing import Any

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from rlobj.scoring.rows import Curve, RowGradient, Sums, TorchRows

BLOCK = 2048
"""The largest number of logits in a program's block: 16 in the registers of each thread."""

WARPS = 4

_SUMS = "maximum_ mass_ target_ slope_ square_ square_slope_ largest_"
ONE_A_ROW = ["targets", *_SUMS.split(), "constant_"]
"""Arguments from which a program reads one number. Triton must not specialize kernels for their
alignment: it would compile them again for parts of the rows, without any gain."""


def _jit(function: Any) -> Any:
    compiled: Any = triton.jit  # its type differs between versions
    return compiled(function, do_not_specialize=ONE_A_ROW)


@_jit
def _linear(products, bias, row, stride, column, inside, factor, BIAS: tl.constexpr):
    """x = factor·product + bias, for some columns of a row."""
    x = tl.load(products + row * stride + column, mask=inside, other=0.0) * factor
    if BIAS:
        x += tl.load(bias + column, mask=inside, other=0.0)
    return x


@_jit
def _bent(x, cap, CAP: tl.constexpr):
    """cap·tanh(x), or x."""
    if CAP:
        x = cap * (2 * tl.sigmoid(2 * x) - 1)
    return x


@_jit
def _fold_kernel(
    products,
    bias,
    targets,
    maximum_,
    mass_,
    target_,
    slope_,
    square_,
    square_slope_,
    largest_,
    columns,
    stride,
    factor,
    cap,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    SLOPE: tl.constexpr,
    SQUARE: tl.constexpr,
    LARGEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    maximum = tl.load(maximum_ + row)
    mass = tl.load(mass_ + row)
    slope = 0.0
    square = 0.0
    square_slope = 0.0
    if SLOPE:
        slope = tl.load(slope_ + row)
    if SQUARE:
        square = tl.load(square_ + row)
        square_slope = tl.load(square_slope_ + row)
    largest = float("-inf")
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = _linear(products, bias, row, stride, column, inside, factor, BIAS)
        z = tl.where(inside, _bent(x, cap, CAP), float("-inf"))
        largest = tl.maximum(largest, tl.max(z, 0))
        raised = tl.maximum(maximum, largest)
        shift = maximum - raised
        scale = tl.exp(shift)
        shifted = tl.where(inside, z - raised, 0.0)
        power = tl.where(inside, tl.exp(shifted), 0.0)
        weighted = power * shifted
        if SLOPE:
            slope = scale * (slope + mass * shift) + tl.sum(weighted, 0)
        if SQUARE:
            square_slope = scale * scale * (square_slope + square * shift)
            square_slope += tl.sum(weighted * power, 0)
            square = scale * scale * square + tl.sum(power * power, 0)
        mass = scale * mass + tl.sum(power, 0)
        maximum = raised
    target = tl.load(targets + row)
    if (target >= 0) & (target < columns):
        x = _linear(products, bias, row, stride, target, target >= 0, factor, BIAS)
        tl.store(target_ + row, _bent(x, cap, CAP))
    tl.store(maximum_ + row, maximum)
    tl.store(mass_ + row, mass)
    if SLOPE:
        tl.store(slope_ + row, slope)
    if SQUARE:
        tl.store(square_ + row, square)
        tl.store(square_slope_ + row, square_slope)
    if LARGEST:
        tl.store(largest_ + row, largest)


@_jit
def _differentiate_kernel(
    products,
    out,
    bias,
    targets,
    maximum_,
    target_,
    constant_,
    slope_,
    columns,
    stride,
    out_stride,
    factor,
    cap,
    BIAS: tl.constexpr,
    CAP: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    maximum = tl.load(maximum_ + row)
    by_target = tl.load(target_ + row)
    constant = tl.load(constant_ + row)
    target = tl.load(targets + row)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    x = _linear(products, bias, row, stride, column, inside, factor, BIAS)
    shifted = tl.where(inside, _bent(x, cap, CAP) - maximum, 0.0)
    by_power = constant
    if SLOPE:
        by_power = constant + tl.load(slope_ + row) * shifted
    gradient = tl.exp(shifted) * by_power + tl.where(column == target, by_target, 0.0)
    if CAP:
        bend = 2 * tl.sigmoid(2 * x) - 1
        gradient *= cap * (1 - bend * bend)
    gradient *= factor
    tl.store(out + row * out_stride + column, gradient.to(out.dtype.element_ty), mask=inside)


class TritonRows(TorchRows):
    """The operations with one kernel launch per tile; tiles are float32."""

    def __init__(self, rows: int, columns: int, like: Tensor) -> None:
        super().__init__(rows, columns, like)
        self._halves: Tensor | None = None
        # The same for all tiles, since each block size is compiled and the last tile is narrower.
        self._block = min(BLOCK, triton.next_power_of_2(columns))

    def fold(self, tile: Tensor, curve: Curve, targets: Tensor, sums: Sums) -> None:
        optional = (sums.slope, sums.square, sums.square_slope, sums.largest)
        _launch(
            _fold_kernel,
            (len(tile),),
            tile,
            tile if curve.bias is None else curve.bias,
            targets,
            sums.maximum,
            sums.mass,
            sums.target,
            *(sums.mass if column is None else column for column in optional),
            SLOPE=sums.slope is not None,
            SQUARE=sums.square is not None,
            LARGEST=sums.largest is not None,
            **self._common(tile, curve),
        )

    def differentiate(
        self, tile: Tensor, curve: Curve, targets: Tensor, gradient: RowGradient, dtype: torch.dtype
    ) -> Tensor:
        out = tile
        if dtype != tile.dtype:
            if self._halves is None:
                self._halves = torch.empty_like(self._tile, dtype=dtype)
            out = self._halves.as_strided(tile.shape, tile.stride())
        _launch(
            _differentiate_kernel,
            (len(tile), -(-tile.shape[1] // int(self._block))),
            tile,
            out,
            tile if curve.bias is None else curve.bias,
            targets,
            gradient.maximum,
            gradient.target,
            gradient.constant,
            gradient.maximum if gradient.slope is None else gradient.slope,
            out_stride=out.stride(0),
            SLOPE=gradient.slope is not None,
            **self._common(tile, curve),
        )
        return out

    def _common(self, tile: Tensor, curve: Curve) -> dict[str, Any]:
        """The arguments that all kernels have."""
        return {
            "columns": tile.shape[1],
            "stride": tile.stride(0),
            "factor": curve.factor,
            "cap": curve.cap or 0.0,
            "BIAS": curve.bias is not None,
            "CAP": curve.cap is not None,
            "BLOCK": self._block,
            "num_warps": WARPS,
        }


def _launch(
    kernel: Any, grid: tuple[int, ...], tile: Tensor, *arguments: Any, **named: Any
) -> None:
    """Launch a kernel on the tile's device, which may not be the current device."""
    with torch.cuda.device_of(tile):
        kernel[grid](tile, *arguments, **named)
