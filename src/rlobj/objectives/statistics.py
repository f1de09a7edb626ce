"""Exact sums, counts and order statistics over all micro-batches and all ranks of an update.

Every function takes the values of this process and a `Comm`. All ranks must call it together. They
get the same result to the bit, for any split and order of the tokens. Order statistics are found by
counting the 16-bit digits of integer keys that keep the order of the values (float32: two passes,
float64: four). So they need no sort and no gather, and work for any number of tokens.
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

_DIGIT = 16  # bits of a key that one pass counts
_LIMB = 30  # bits of a value that `exact_sum` adds at once; N < 2^33 values cannot overflow
_FEW = 1 << 15  # up to this many keys, `kthvalue` is faster than counting digits
_CHUNK = 1 << 20  # values per block; the temporary tensors of a block fit in the cache


class Comm(Protocol):
    """A process group: the only operation that an objective needs is `sum`."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> Tensor:
        """The element-wise sum of `tensor` (int64 or float64) over all ranks, on every rank."""
        ...


class SingleProcess:
    """The `Comm` of a single process."""

    rank = 0
    size = 1

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor


def count(mask: Tensor, comm: Comm) -> int:
    """Number of True entries over all ranks."""
    return int(comm.sum(mask.sum(dtype=torch.int64)))


def exact_sum(values: Tensor, comm: Comm) -> float:
    """Σ values over all ranks, rounded once: independent of split, ranks and order.

    Each value is split into 30-bit integers on one common grid, and the integers are added in
    int64. The grid ends 150 bits below the largest exponent. So the result is the correctly rounded
    sum, unless values that differ by a factor above 2^97 cancel. The result is nan if a value is
    not finite.
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
    """The mean of values[mask] over all ranks, for any order; nan if the mask is empty."""
    n = count(mask, comm)
    total = exact_sum(values[mask], comm)
    return total / n if n else float("nan")


def gather(table: Tensor, comm: Comm) -> tuple[Tensor, int]:
    """The rows of all ranks of a small table [B, ...], and the index of this rank's first row.

    Each rank writes its rows into a table of zeros, and the tables are summed.

    Args:
        table: this rank's rows, float64 or int64.
        comm: the process group.
    """
    sizes = torch.zeros(comm.size, dtype=torch.int64, device=table.device)
    sizes[comm.rank] = len(table)
    sizes = comm.sum(sizes)
    start = int(sizes[: comm.rank].sum())
    whole = table.new_zeros((int(sizes.sum()), *table.shape[1:]))
    whole[start : start + len(table)] = table
    return comm.sum(whole), start


def order_keys(values: Tensor) -> Tensor:
    """Integers in the same order as the values, [N]: int64 for float64, else int32.

    −0.0 and 0.0 have the same key. Integer values are returned as they are.
    """
    if not values.dtype.is_floating_point:
        return values
    if values.dtype != torch.float64:
        bits = (values.float() + 0.0).view(torch.int32)
        return (bits >> 31).bitwise_and_(0x7FFFFFFF).bitwise_xor_(bits)
    bits = (values + 0.0).view(torch.int64)
    return (bits >> 63).bitwise_and_(0x7FFFFFFFFFFFFFFF).bitwise_xor_(bits)


def from_keys(key: int, dtype: torch.dtype) -> Tensor:
    """The value whose key is `key`, a 0-d tensor: the inverse of `order_keys`."""
    if dtype != torch.float64:
        bits = torch.tensor(key, dtype=torch.int32)
        return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).view(torch.float32)
    bits = torch.tensor(key, dtype=torch.int64)
    return (bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)).view(torch.float64)


def kth_smallest(keys: Tensor, k: int, comm: Comm, within: Tensor | None = None) -> int:
    """The k-th smallest key over all ranks, found by counting digits from the highest one.

    For few keys of a single process, `kthvalue` gives the same key.

    Args:
        keys: int32 or int64, [N] on this rank; the same dtype on every rank.
        k: from 1 to the number of keys over all ranks.
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
    """A pseudo-random int64 for each row of integer columns, the same on any machine, [N].

    SplitMix64's finaliser (Steele et al. 2014), applied to one column after another.

    Args:
        columns: each [N], or one number for all rows.
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
