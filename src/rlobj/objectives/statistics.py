"""Exact sums, counts and order statistics over all micro-batches and all ranks of an update.

Every function takes the values of this process and a `Comm`. All ranks must call it together. They
get the same result to the bit, for any split and order of the tokens. Order statistics are found by
counting the 16-bit digits of integer keys that keep the order of the values (float32: two passes,
float64: four). So they need no sort and no gather, and work for any number of tokens. Only ranks
gather the keys of all ranks.
"""

from typing import Protocol

import torch
from torch import Tensor

_DIGIT = 16  # bits of a key that one pass counts
_LIMB = 30  # bits of a value that `exact_sum` adds at once; N < 2^33 values cannot overflow
_LIMBS = 3  # of a float64; float32 needs two
_PLACES, _OFFSET = 73, 1140  # a limb at place p < 73 counts 2^(30·p − 1140)
_FEW = 1 << 15  # up to this many keys, `kthvalue` is faster than counting digits
_CHUNK = 1 << 20  # values per block; the temporary tensors of a block fit in the cache
_BLOCK = 1 << 16  # the same for sums
_SCANNED = 64  # rows of a block that `scan` adds one after another


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


def count_by(mask: Tensor, unit: Tensor, units: int, comm: Comm) -> Tensor:
    """Number of True entries in each unit over all ranks, int64 [units].

    Args:
        mask: bool [N].
        unit: the unit of each entry, from 0, int [N]; the same numbering on all ranks.
        units: the number of units.
        comm: the process group.
    """
    return comm.sum(torch.bincount(unit[mask], minlength=units))


def exact_sum(values: Tensor, comm: Comm) -> float:
    """Σ values over all ranks, rounded once: independent of split, ranks and order.

    It is nan if a value is not finite.
    """
    unit = torch.zeros(1, dtype=torch.int64, device=values.device).expand(len(values))
    return float(exact_sum_by(values, unit, 1, comm))


def exact_sum_by(values: Tensor, unit: Tensor, units: int, comm: Comm) -> Tensor:
    """Σ values of each unit over all ranks, each rounded once, float64 [units].

    A value is an integer times a power of two. Its binary digits are cut into limbs of 30 bits,
    whose places are the same for all values, and each unit adds the limbs of a place in int64. So
    no digit is lost, however much the values of a unit, or those of two units, differ in size.

    Args:
        values: [N]. All sums are nan if a value on any rank is not finite.
        unit: the unit of each value, from 0, int [N]; the same numbering on all ranks.
        units: the number of units.
        comm: the process group.
    """
    values = values.detach() if values.dtype in (torch.float32, torch.float64) else values.double()
    blocks = list(zip(values.split(_BLOCK), unit.split(_BLOCK), strict=True)) if len(values) else []
    used = torch.zeros(_PLACES + 1, dtype=torch.int64, device=values.device)
    for block, _ in blocks:
        ends = torch.stack(block.abs().masked_fill(block == 0, 0.5).aminmax())  # 0 = 0.0·2^0
        used[_first_limbs(ends)[1].masked_fill(~ends.isfinite(), _PLACES)] = 1
    occupied = comm.sum(used).nonzero().flatten().tolist()
    if not occupied or occupied[-1] == _PLACES:
        return unit.new_full((units,), torch.nan if occupied else 0, dtype=torch.float64)
    highest, width = occupied[-1], occupied[-1] - occupied[0] + _LIMBS
    table = unit.new_zeros(units * width, dtype=torch.int64)
    for block, of_block in blocks:
        rest, places = _first_limbs(block)
        cells = of_block * width + highest - places
        for i in range(_LIMBS if values.dtype == torch.float64 else 2):
            table.index_add_(0, cells + i, rest.long())
            rest = rest.frac() * 2.0**_LIMB
    return _rounded(comm.sum(table).view(units, width), _LIMB * highest - _OFFSET)


def _first_limbs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Each value in units of its first limb, below 2^30, and this limb's place, int32; both [N]."""
    fraction, exponent = torch.frexp(values)
    places = (exponent + (_OFFSET - 1)) // _LIMB
    return fraction * (1 << (exponent + _OFFSET - _LIMB * places)), places


def _rounded(limbs: Tensor, exponent: int) -> Tensor:
    """The float64 that is nearest to Σ_i limbs[:, i]·2^(exponent − 30·i), [units]."""
    negative = _carried(limbs)[:, 0] < 0
    digits = _carried(torch.where(negative[:, None], -limbs, limbs))
    first = (digits != 0).int().argmax(1)
    head, second, third = digits.gather(1, first[:, None] + torch.arange(3).to(first)).unbind(1)
    bits = torch.frexp(head.double())[1].long().clamp(min=1)
    whole = (head << (61 - bits)) | (second << (31 - bits)) | (third >> (bits - 1))
    rest = digits.sum(1) - head - second - third + (third & ((1 << (bits - 1)) - 1))
    nearest = (whole | (rest != 0)).double() * 2.0**-60  # the last bit breaks ties
    exponents = exponent - _LIMB * (first - 2) + bits - 1
    half = exponents // 2  # a power may be below the smallest float64 that has all its digits
    nearest = nearest * _power_of_two(half) * _power_of_two(exponents - half)
    return torch.where(negative, -nearest, nearest)


def _carried(limbs: Tensor) -> Tensor:
    """The same sum with digits from 0 to 2^30 − 1, but for the sign of the first; two zeros end it.

    Args:
        limbs: int64, [units, P], from the highest place.

    Returns:
        Int64, [units, P + 4].
    """
    carry = torch.zeros_like(limbs[:, 0])
    digits = [carry, carry]
    for limb in (*limbs.flip(1).unbind(1), carry):
        carry = carry + limb
        digits.append(carry & ((1 << _LIMB) - 1))
        carry = carry >> _LIMB
    return torch.stack([*digits, carry], 1).flip(1)


def _power_of_two(exponents: Tensor) -> Tensor:
    """2^exponents, exactly, for int64 from −1022 to 1023."""
    return ((exponents + 1023) << 52).view(torch.float64)


def extreme_by(values: Tensor, unit: Tensor, units: int, largest: bool, comm: Comm) -> Tensor:
    """The largest or smallest value of each unit over all ranks, [units]; ∓inf without values."""
    limit = -torch.inf if largest else torch.inf
    kind = "amax" if largest else "amin"
    extremes = torch.full((units,), limit, dtype=torch.float64, device=values.device)
    extremes.scatter_reduce_(0, unit, values.double(), kind)
    ranks = torch.zeros(comm.size, units, dtype=torch.float64, device=values.device)
    ranks[comm.rank] = extremes
    return getattr(comm.sum(ranks), kind)(0)


def deviation_by(values: Tensor, unit: Tensor, units: int, comm: Comm) -> Tensor:
    """sqrt(Σ (x − mean)²/(n − 1)) of each unit over all ranks, float64 [units].

    It is exactly 0 of equal values, of one and of none. Values count in units of their range.
    """
    low, high = (extreme_by(values, unit, units, largest, comm) for largest in (False, True))
    span = (high - low).where(high > low, 1)
    places = (values.double() - low[unit]) / span[unit]
    n = comm.sum(torch.bincount(unit, minlength=units))
    mean = exact_sum_by(places, unit, units, comm) / n
    squares = exact_sum_by((places - mean[unit]).square(), unit, units, comm)
    return span * (squares / (n - 1).clamp(min=1)).sqrt()


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


def numbered(names: Tensor, comm: Comm) -> tuple[Tensor, int]:
    """The number of each name of this rank, from 0 and the same on all ranks, and how many.

    Args:
        names: int64, [N], or [N, K] for names of K numbers.
        comm: the process group.
    """
    mine, place = names.unique(dim=0, return_inverse=True)
    every, start = gather(mine, comm)
    different, number = every.unique(dim=0, return_inverse=True)
    return number[start : start + len(mine)][place], len(different)


def order_keys(values: Tensor) -> Tensor:
    """Integers in the same order as the values, [N]: int64 for float64, else int32.

    −0.0 and 0.0 have the same key. Integer values are returned as they are.
    """
    if not values.dtype.is_floating_point:
        return values
    single = values.dtype != torch.float64
    bits = (values.float() + 0.0).view(torch.int32) if single else (values + 0.0).view(torch.int64)
    size = torch.iinfo(bits.dtype)
    return (bits >> (size.bits - 1)).bitwise_and_(size.max).bitwise_xor_(bits)


def from_keys(keys: Tensor) -> Tensor:
    """The values with these keys, int32 or int64: the inverse of `order_keys`."""
    size = torch.iinfo(keys.dtype)
    kind = torch.float32 if keys.dtype == torch.int32 else torch.float64
    return (keys ^ ((keys >> (size.bits - 1)) & size.max)).view(kind)


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


def kth_smallest_by(keys: Tensor, k: Tensor, unit: Tensor, comm: Comm) -> Tensor:
    """The k-th smallest key of each unit over all ranks, [units]; 0 where k is 0.

    It is found by counting digits of 8 bits from the highest one.

    Args:
        keys: int32 or int64, [N] on this rank; the same dtype on every rank.
        k: from 1 to the unit's number of keys over all ranks, or 0, int64 [units].
        unit: the unit of each key, from 0, int [N]; the same numbering on all ranks.
        comm: the process group.
    """
    units, bits = len(k), torch.iinfo(keys.dtype).bits
    prefix = torch.zeros_like(k)
    for shift in range(bits - 8, -1, -8):
        sign = 0x80 if shift + 8 == bits else 0
        histogram = torch.zeros(units * 256, dtype=torch.int64, device=keys.device)
        for start in range(0, len(keys), _CHUNK):
            block, of_block = keys[start : start + _CHUNK].long(), unit[start : start + _CHUNK]
            cells = of_block * 256 + (((block >> shift) & 0xFF) ^ sign)
            if not sign:
                cells = cells[(block >> (shift + 8)) == prefix[of_block]]
            histogram += torch.bincount(cells, minlength=units * 256)
        below = comm.sum(histogram).view(units, 256).cumsum(1)
        digit = torch.searchsorted(below, k.clamp(min=1)[:, None]).squeeze(1).clamp(max=255)
        k = k - torch.where(digit > 0, below.gather(1, (digit - 1).clamp(min=0)[:, None])[:, 0], 0)
        prefix = digit - 0x80 if sign else (prefix << 8) | digit
    return prefix


def mean_cut_by(values: Tensor, unit: Tensor, units: int, limit: float, comm: Comm) -> Tensor:
    """Where each unit's values end whose mean is at most `limit`, taken from the smallest one on.

    It is the key of the smallest value over all ranks with which the mean is above the limit, or
    the largest int64 if the mean of all is not; int64 [units]. It is found by adding up the values
    with the same digits of 4 bits, from the highest digit.

    Args:
        values: finite floats, [N] on this rank; the same dtype on every rank.
        unit: the unit of each value, from 0, int64 [N]; the same numbering on all ranks.
        units: the number of units.
        limit: the largest mean.
        comm: the process group.
    """
    keys, whole = order_keys(values), unit.new_zeros(units).bool()
    bits = torch.iinfo(keys.dtype).bits
    keys, end, count = keys.long(), unit.new_zeros(units), unit.new_zeros(units, 1)
    total = torch.zeros(units, 1, dtype=torch.float64, device=keys.device)
    for shift in range(bits - 4, -1, -4):
        sign = 8 if shift + 4 == bits else 0
        cells = unit * 16 + (((keys >> shift) & 15) ^ sign)
        counts_by_cell = comm.sum(torch.bincount(cells, minlength=units * 16))
        counts = count + counts_by_cell.view(units, 16).cumsum(1)
        totals_by_cell = exact_sum_by(values, cells, units * 16, comm)
        totals = total + totals_by_cell.view(units, 16).cumsum(1)
        above = totals > limit * counts.double()
        digit = torch.where(above.any(1), above.int().argmax(1), 15)
        if sign:
            whole, end = ~above.any(1), digit - sign
        else:
            end = (end << 4) | digit
        before = (digit - 1).clamp(min=0)[:, None]
        count = torch.where(digit[:, None] > 0, counts.gather(1, before), count)
        total = torch.where(digit[:, None] > 0, totals.gather(1, before), total)
        rest = (keys >> shift) == end[unit]
        keys, values, unit = keys[rest], values[rest], unit[rest]
    return end.masked_fill(whole, torch.iinfo(torch.int64).max)


def shares_below(keys: Tensor, unit: Tensor, units: int, comm: Comm) -> Tensor:
    """(rank − 1)/(n − 1) of each key among the n keys of its unit over all ranks, float64 [N].

    The smallest key has rank 1. Equal keys have the mean of their ranks. It is 0.5 if n is 1.

    Args:
        keys: int64, [N] on this rank.
        unit: the unit of each key, from 0, int64 [N]; the same numbering on all ranks.
        units: the number of units.
        comm: the process group.
    """
    rows, start = gather(torch.stack([unit, keys], 1), comm)
    place = rows[:, 1].unique(return_inverse=True)[1] + rows[:, 0] * len(rows)
    places, which, equal = place.unique(return_inverse=True, return_counts=True)
    unit_of = places // max(len(rows), 1)  # the unit of each different key
    n = rows[:, 0].bincount(minlength=units)
    below = equal.cumsum(0) - equal - (n.cumsum(0) - n)[unit_of]
    shares = (2 * below + equal - 1).double() / (2 * n[unit_of] - 2)
    return torch.where(n[unit_of] > 1, shares, 0.5)[which][start : start + len(keys)]


def scan(
    values: Tensor,
    positions: Tensor,
    decay: float | Tensor,
    longest: int,
    backward: bool = False,
) -> Tensor:
    """y_t = x_t + d_t·y_{t−1} along each response, float64 [N].

    Sums of blocks of 64 rows are added up in the same way. The position alone determines this
    order, so the result does not depend on the other responses.

    Args:
        values: x, [N].
        positions: each row's position in its response, from 0, [N].
        decay: d in [0, 1], one number, or one for each row that receives a sum, [N].
        longest: the number of rows of the longest response.
        backward: y_{t+1} in place of y_{t−1}; the last row of a response has position 0.
    """
    if not len(values):
        return values.double()
    size = min(longest, _SCANNED)
    place = positions % size
    first = place == 0
    block = first.cumsum(0) - (first.long() if backward else 1)
    blocks = int(first.sum())
    cell = place * blocks + block
    total = torch.zeros(size * blocks, dtype=torch.float64, device=values.device)
    total[cell] = values.double()
    if isinstance(decay, Tensor):
        factor = torch.zeros_like(total)
        factor[cell] = decay.double().expand(len(cell))
    else:
        factor = total.new_full((size,), decay)
    total, factor = total.view(size, blocks), factor.view(size, -1)
    for row in range(1, size):
        total[row] += factor[row] * total[row - 1]
        factor[row] *= factor[row - 1]
    if longest > size:
        number, sums = positions[first] // size, factor[-1].expand(blocks)
        sums = scan(total[-1], number, sums, -(-longest // size), backward)
        before = _earlier(sums.flip(0), 1).flip(0) if backward else _earlier(sums, 1)
        total += factor * before.masked_fill(number == 0, 0)
    return total.view(-1)[cell]


def scan_to_go(values: Tensor, decay: Tensor, lengths: Tensor) -> Tensor:
    """y_t = x_t + d_t·y_{t+1} along each response, float64 [N]; the rest is as in `scan`.

    Args:
        values: x, [N].
        decay: d, [N].
        lengths: rows of each response, [B].
    """
    rows = torch.arange(len(values), device=values.device)
    left = (lengths.cumsum(0) - 1).repeat_interleave(lengths) - rows
    longest = int(lengths.max()) if len(lengths) else 0
    return scan(values, left, decay, longest, backward=True)


def scan_extremes(values: Tensor, positions: Tensor, largest: bool, longest: int) -> Tensor:
    """The largest (or smallest) value so far along each response, [N]; the rest is as in `scan`."""
    extreme, step, pick = values, 1, torch.maximum if largest else torch.minimum
    while step < longest:
        both = pick(extreme, _earlier(extreme, step))
        extreme, step = torch.where(positions >= step, both, extreme), 2 * step
    return extreme


def _earlier(values: Tensor, step: int) -> Tensor:
    """The value `step` rows before, 0 before the first one."""
    return torch.cat([torch.zeros_like(values[:step]), values[:-step]])


def hash_keys(columns: tuple[Tensor | int, ...], after: Tensor | int = 0) -> Tensor:
    """A pseudo-random int64 for each row of integer columns, the same on any machine, [N].

    SplitMix64's finaliser (Steele et al. 2014), applied to one column after another.

    Args:
        columns: each [N], or one number for all rows.
        after: the hashes of columns before these, [N]; 0 = there are none.
    """
    state = torch.as_tensor(after, dtype=torch.int64)
    for column in columns:
        column = torch.as_tensor(column, dtype=torch.int64)
        state = _mix(state.to(column.device) + column + _signed(0x9E3779B97F4A7C15))
    return state


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    state = (state ^ _shift(state, 27)) * _signed(0x94D049BB133111EB)
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)


def _signed(unsigned: int) -> int:
    """The int64 with the bits of an unsigned number."""
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned
