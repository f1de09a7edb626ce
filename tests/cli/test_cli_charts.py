"""Curves out of characters show the values where they are."""

from __future__ import annotations

import pytest

from rlobj_cli.screen.progress import resample, sparkline


def test_resample_takes_means_of_neighbours_and_keeps_short_lists() -> None:
    assert resample([1, 3, 5, 7], 2) == [2, 6]
    assert resample([1, 3], 5) == [1, 3]
    assert resample([], 5) == []
    assert sum(resample(range(100), 7)) / 7 == pytest.approx(49.5, abs=1)


def test_sparkline_is_scaled_from_smallest_to_largest() -> None:
    assert sparkline([5, 1, 5, 9], 10) == "▅▁▅█"
    assert sparkline([2, 2, 2], 10) == "▁▁▁"
    assert len(sparkline(list(range(500)), 30)) == 30
