"""Order statistics equal a full sort, and sums equal those of fractions, in any order."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from ranks import on_ranks

from rlobj.objectives.statistics import (
    Comm,
    SingleProcess,
    deviation_by,
    exact_sum,
    exact_sum_by,
    from_keys,
    hash_keys,
    kth_smallest,
    order_keys,
)

ALONE = SingleProcess()
SPECIAL = [0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324, 1e-45, 1.0, -1.0]
doubles = st.floats(allow_nan=False) | st.sampled_from(SPECIAL)
dtypes = st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16])


@given(st.lists(doubles, min_size=1, max_size=40), dtypes)
def test_kth_smallest_equals_a_full_sort(values: list[float], dtype: torch.dtype) -> None:
    column = torch.tensor(values, dtype=torch.float64).to(dtype)
    keys = order_keys(column)
    ranked = column.sort().values
    for k in range(1, len(values) + 1):
        value = from_keys(torch.tensor(kth_smallest(keys, k, ALONE), dtype=keys.dtype))
        assert value.double() == ranked[k - 1].double()


def test_kth_smallest_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlobj.objectives.statistics._CHUNK", 7)
    column = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    within = column > -1
    keys, ranked = order_keys(column), column[within].sort().values
    for k in (1, 50, len(ranked)):
        assert from_keys(torch.tensor(kth_smallest(keys, k, ALONE, within))) == ranked[k - 1]
    assert exact_sum(column, ALONE) == math.fsum(column.tolist())


@example(0.0, -0.0, torch.float64)
@example(-0.0, 0.0, torch.float32)
@given(doubles, doubles, dtypes)
def test_keys_have_the_order_of_the_values(a: float, b: float, dtype: torch.dtype) -> None:
    column = torch.tensor([a, b], dtype=torch.float64).to(dtype)
    keys = order_keys(column)
    assert (keys[0] < keys[1]) == (column[0] < column[1])
    assert (keys[0] == keys[1]) == (column[0] == column[1])
    assert from_keys(keys[0]).double() == column[0].double()


@pytest.mark.parametrize(
    "values",
    [
        *([1e25, 1.0, -1e25], [1e16, 1.0, -1e16, 1e-9], [0.1] * 10, [5e-324] * 3, [1e-60, 2e-60]),
        *([5e-324, 1e-310, -1e-310], [1e200, 1e201, -3e190], [1.7e308, 1e306], [0.0, -0.0], []),
        *([1e300, 1.0, -1e300], [1.0, 2.0**-53, 2.0**-900], [1.0, 2.0**-53], [1.7e308, 1.7e308]),
    ],
)
def test_exact_sum_is_correct_for_cancellation_and_extreme_exponents(values: list[float]) -> None:
    assert exact_sum(torch.tensor(values, dtype=torch.float64), ALONE) == rounded_sum(values)


@st.composite
def populations(draw: st.DrawFn) -> tuple[list[tuple[float, int]], torch.dtype]:
    """Values over 600 binary orders (float32: 240), some of which cancel, and their units."""
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    orders = 300 if dtype == torch.float64 else 120
    fractions = st.floats(-1, 1) | st.sampled_from([1.0, -1.0, 0.0, 1 + 2.0**-52])
    values = st.builds(math.ldexp, fractions, st.integers(-orders, orders))
    rows = draw(st.lists(st.tuples(values, st.integers(0, 3)), max_size=40))
    rows += [(-value, unit) for value, unit in draw(st.permutations(rows))[: len(rows) // 2]]
    column = torch.tensor([value for value, _ in rows], dtype=torch.float64).to(dtype)
    units = [unit for _, unit in rows]
    return draw(st.permutations(list(zip(column.tolist(), units, strict=True)))), dtype


def rounded_sum(values: list[float]) -> float:
    """The sum of fractions, rounded once."""
    total = sum(map(Fraction, values), Fraction())
    if abs(total) >= 2**1024 - 2**970:
        return math.inf if total > 0 else -math.inf
    return float(total)


@given(populations(), st.integers(1, 3))
def test_sums_by_unit_equal_sums_of_fractions_on_any_ranks(population: Any, ranks: int) -> None:
    rows, dtype = population
    expected = [rounded_sum([value for value, of in rows if of == unit]) for unit in range(4)]

    def sums(comm: Comm) -> list[float]:
        mine = rows[comm.rank :: comm.size]
        values = torch.tensor([value for value, _ in mine], dtype=dtype)
        unit = torch.tensor([unit for _, unit in mine], dtype=torch.int64)
        return exact_sum_by(values, unit, 4, comm).tolist()

    assert on_ranks(ranks, sums) == [expected] * ranks


def test_sums_of_several_blocks_equal_sums_of_fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlobj.objectives.statistics._BLOCK", 7)
    column = torch.randn(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).exp()
    column[:50] *= 1e-80
    unit = torch.arange(100) // 10
    expected = [rounded_sum(part.tolist()) for part in column.split(10)]
    assert exact_sum_by(column, unit, 10, ALONE).tolist() == expected
    assert exact_sum_by(column, unit.int(), 10, ALONE).tolist() == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_exact_sum_is_nan_if_a_value_is_not_finite(bad: float) -> None:
    assert math.isnan(exact_sum(torch.tensor([1.0, bad, 1e300]), ALONE))


def test_hash_keys_are_uniform() -> None:
    rows, positions = torch.arange(200).repeat_interleave(500), torch.arange(500).repeat(200)
    keys = hash_keys((0, 0, rows, positions))
    assert len(keys.unique()) == 100_000
    for shift in (0, 20, 40, 60):  # each hexadecimal digit looked at is uniform
        observed = torch.bincount((keys >> shift) & 15, minlength=16)
        chi_squared = ((observed - 6250).double().square() / 6250).sum()
        assert chi_squared < 44  # 15 degrees of freedom: exceeded once in 10,000
    below = (keys < 0).reshape(200, 500).double().mean(1)
    assert (below - 0.5).abs().max() < 0.12  # no response is favoured


def test_hash_keys_equal_splitmix64() -> None:
    # SplitMix64 with state 0: its first published output
    assert int(hash_keys((0,))) == 0xE220A8397B1DCDAF - (1 << 64)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=30), st.integers(0, 9))
def test_a_deviation_is_the_unbiased_one_on_any_number_of_ranks(
    values: list[float], cut: int
) -> None:
    column, unit = (
        torch.tensor(values, dtype=torch.float64),
        torch.zeros(len(values), dtype=torch.int64),
    )
    whole = deviation_by(column, unit, 1, ALONE)
    span = max(values) - min(values)
    assert float(whole) == pytest.approx(statistics.stdev(values), rel=1e-9, abs=1e-12 * span)
    parts = [slice(0, cut), slice(cut, None)]  # one of them may be empty
    of_ranks = on_ranks(
        2, lambda at: deviation_by(column[parts[at.rank]], unit[parts[at.rank]], 1, at)
    )
    assert all(torch.equal(found, whole) for found in of_ranks)
    backwards = deviation_by(column.flip(0), unit, 1, ALONE)
    assert torch.equal(backwards, whole)


def test_equal_values_deviate_by_exactly_nothing() -> None:
    third = 1 / 3  # 49 of them do not add up to a number whose 49th part is one of them
    values, unit = [third] * 49 + [7.25, 1e300, -1e300], [0] * 49 + [1, 3, 3]
    found = deviation_by(
        torch.tensor(values, dtype=torch.float64), torch.tensor(unit), 4, ALONE
    ).tolist()
    assert found[:3] == [0, 0, 0]  # equal ones, one, none
    assert found[3] == pytest.approx(math.sqrt(2) * 1e300)
