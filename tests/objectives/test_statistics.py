"""Order statistics equal a full sort, and sums equal math.fsum, in any order."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rlobj.objectives.statistics import (
    SingleProcess,
    exact_sum,
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


@given(st.lists(st.floats(-1e12, 1e12), max_size=60), st.randoms())
def test_exact_sum_is_correctly_rounded_in_any_order(values: list[float], random: Any) -> None:
    largest = max(map(abs, values), default=0.0)
    assume(all(x == 0 or abs(x) > largest * 2.0**-96 for x in values))
    shuffled = random.sample(values, len(values))
    totals = [exact_sum(torch.tensor(x, dtype=torch.float64), ALONE) for x in (values, shuffled)]
    assert totals == [math.fsum(values)] * 2


@pytest.mark.parametrize(
    "values",
    [
        *([1e25, 1.0, -1e25], [1e16, 1.0, -1e16, 1e-9], [0.1] * 10, [5e-324] * 3, [1e-60, 2e-60]),
        *([5e-324, 1e-310, -1e-310], [1e200, 1e201, -3e190], [1.7e308, 1e306], [0.0, -0.0], []),
    ],
)
def test_exact_sum_is_correct_for_cancellation_and_extreme_exponents(values: list[float]) -> None:
    assert exact_sum(torch.tensor(values, dtype=torch.float64), ALONE) == math.fsum(values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=30), st.randoms())
def test_exact_sum_does_not_depend_on_order_beyond_its_grid(values, random):
    column = torch.tensor(values, dtype=torch.float64) / 64  # no overflow
    shuffled = column[random.sample(range(len(values)), len(values))]
    assert exact_sum(column, ALONE) == exact_sum(shuffled, ALONE)


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
