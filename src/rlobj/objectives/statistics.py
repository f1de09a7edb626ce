"""Exact sums, counts and order statistics over all micro-batches and all ranks of an update.

Every function takes what this process holds and a `Comm`; all ranks must call it together and
get the same answer, bit for bit, however the tokens are split or ordered. Order statistics
count order-preserving integer keys in 16-bit digits (float32: two passes, float64: four): no
sort, no gather, any number of tokens.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

__all__ = [
    "Comm",
    "SingleProcess",
    "count",
    "exact_mean",
    "exact_sum",
    "from_keys",
    "gather",
    "hash_keys",
    "kth_smallest",
    "order_keys",
]

_DIGIT = 16  # bits of a key counted per pass
_LIMB = 30  # bits of a value added up per pass of `exact_sum`; N < 2^33 values cannot overflow
_FEW = 1 << 15  # keys below which counting digits costs more than selecting
_CHUNK = 1 << 20  # values per block, so that temporaries stay in cache


class Comm(Protocol):
    """The one thing that an objective asks of a process group."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The element-wise sum of `tensor` (int64 or float64) over all ranks, on every rank."""
        ...


class SingleProcess:
    """The `Comm` of one process: nothing to exchange."""

    rank = 0
    size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


def count(mask: Tensor, comm: Comm) -> int:
    """Number of True entries over all ranks."""
    return int(comm.sum(mask.sum(dtype=torch.int64)))


def exact_sum(values: Tensor, comm: Comm) -> float:
    """Σ values over all ranks, rounded once: independent of split, ranks and order.

    Each value is cut into 30-bit integers on one common grid, and the integers are added in
    int64. The grid ends 150 bits below the largest exponent, so the sum is the correctly rounded
    one unless values more than 2^97 apart cancel. nan where a value is not finite.
    """
    values = values.detach().double()
    _, exponents = torch.frexp(values)
    places = torch.where(values.isfinite(), exponents.long() + 1100, 2199)
    occupied = comm.sum(torch.bincount(places[values != 0], minlength=2200)).nonzero()
    if not len(occupied):
        return 0.0
    if int(occupied[-1]) == 2199:
        return float("nan")
    exponent = int(occupied[-1]) - 1100
    limbs = torch.zeros(5, dtype=torch.int64, device=values.device)
    for block in values.split(_CHUNK):
        rest = torch.ldexp(block, torch.tensor(-exponent, device=values.device))
        for i in range(len(limbs)):
            rest = rest * 2.0**_LIMB
            limb = rest.trunc()
            limbs[i] += limb.long().sum()
            rest = rest - limb
    total = Fraction(0)
    for i, limb in enumerate(comm.sum(limbs).tolist()):
        total += limb * Fraction(2) ** (exponent - _LIMB * (i + 1))
    return float(total)


def exact_mean(values: Tensor, mask: Tensor, comm: Comm) -> float:
    """Mean of values[mask] over all ranks, order-free; nan where the mask is empty."""
    n = count(mask, comm)
    total = exact_sum(values[mask], comm)
    return total / n if n else float("nan")


def gather(table: Tensor, comm: Comm) -> tuple[Tensor, int]:
    """All ranks' rows of a small table [B, ...] (float64 or int64), and where ours begin.

    The only collective is `sum`: every rank writes its rows into a table of zeros.
    """
    sizes = torch.zeros(comm.size, dtype=torch.int64, device=table.device)
    sizes[comm.rank] = len(table)
    sizes = comm.sum(sizes)
    start = int(sizes[: comm.rank].sum())
    whole = table.new_zeros((int(sizes.sum()), *table.shape[1:]))
    whole[start : start + len(table)] = table
    return comm.sum(whole), start


def order_keys(values: Tensor) -> Tensor:
    """Integers [N] that order as the values do: int32 for float32 and smaller, int64 otherwise.

    −0.0 and 0.0 share a key. int64 input is its own key.
    """
    if not values.dtype.is_floating_point:
        return values
    if values.dtype != torch.float64:
        bits = (values.float() + 0.0).view(torch.int32)
        return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
    bits = (values + 0.0).view(torch.int64)
    return (bits >> 63).bitwise_and_(0x7FFFFFFFFFFFFFFF).bitwise_xor_(bits)


def from_keys(key: int, dtype: torch.dtype) -> Tensor:
    """The value, a 0-d tensor, whose order key is `key`: the inverse of `order_keys`."""
    if dtype != torch.float64:
        bits = torch.tensor(key, dtype=torch.int32)
        return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)
    bits = torch.tensor(key, dtype=torch.int64)
    return (bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)).view(torch.float64)


def kth_smallest(keys: Tensor, k: int, comm: Comm, within: Tensor | None = None) -> int:
    """The k-th smallest key (k from 1) over all ranks, counting digits from the top.

    A few keys of one process are selected directly, which gives the same key.

    Args:
        keys: int32 or int64, [N] on this rank; the same dtype on every rank.
        k: 1 ≤ k ≤ number of keys over all ranks.
        comm: the process group.
        within: bool [N], the population; None = all.
    """
    if comm.size == 1 and len(keys) <= _FEW:
        return int((keys if within is None else keys[within]).kthvalue(k).values)
    shifts = range(torch.iinfo(keys.dtype).bits - _DIGIT, -1, -_DIGIT)
    prefix = None
    for shift in shifts:
        histogram = torch.zeros(1 << _DIGIT, dtype=torch.int64, device=keys.device)
        for start in range(0, len(keys), _CHUNK):
            block = keys[start : start + _CHUNK]
            if within is not None:
                block = block[within[start : start + _CHUNK]]
            if prefix is not None:
                block = block[(block >> (shift + _DIGIT)) == prefix]
            digits = (block >> shift) & 0xFFFF if prefix is not None else (block >> shift) + 0x8000
            histogram += torch.bincount(digits, minlength=1 << _DIGIT)
        below = comm.sum(histogram).cumsum(0)
        digit = int(torch.searchsorted(below, k))
        k -= int(below[digit - 1]) if digit else 0
        prefix = digit - 0x8000 if prefix is None else (prefix << _DIGIT) | digit
    assert prefix is not None
    return prefix


def hash_keys(columns: tuple[Tensor | int, ...]) -> Tensor:
    """A pseudo-random int64 per row of integer columns ([N] or a number), the same on any machine.

    SplitMix64's finaliser (Steele et al. 2014) folded over the columns.
    """
    state = torch.zeros((), dtype=torch.int64)
    for column in columns:
        column = torch.as_tensor(column, dtype=torch.int64)
        state = _mix(state.to(column.device) + column + _signed(0x9E3779B97F4A7C15))
    return state


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(x: int) -> int:
    """The int64 with the bits of the unsigned x."""
    return x - (1 << 64) if x >> 63 else x
