"""The study of the stability frontier: its search, its rule of collapse, and its tests."""

from __future__ import annotations

import pytest
from benchmarks.frontier import CELLS, collapsed, frontier, search
from benchmarks.frontier_report import holm, p_value


@pytest.mark.parametrize("cell", CELLS)
def test_the_search_finds_the_largest_rate_that_does_not_collapse(cell):
    for largest in range(-1, len(CELLS[cell].rates)):
        runs = {}

        def run(key, largest=largest, runs=runs):
            return runs.setdefault(key, {"collapsed": key[3] > largest})

        assert search("stapo", cell, 0, run) == largest
        assert len(runs) <= 5
        assert frontier(runs, "stapo", cell, 0) == largest
        runs.popitem()
        assert frontier(runs, "stapo", cell, 0) is None


def test_a_run_collapses_below_its_start_at_a_hopeless_accuracy_and_without_a_gradient():
    def line(*accuracies, stopped=False, finite=True):
        return {"accuracies": [0.5, 0.9, *accuracies], "stopped": stopped, "finite": finite}

    assert collapsed(line(0.6, 0.39))
    assert not collapsed(line(0.39, 0.62))
    assert collapsed(line(0.9, 0.9, stopped=True))
    assert collapsed(line(0.9, 0.9, finite=False))
    assert collapsed({"accuracies": [0.5, 0.05], "stopped": True, "finite": True})


def test_the_p_of_equal_signs_is_that_of_two_patterns_and_holm_never_decreases():
    assert p_value([1.0, 2.0, 1.0, 3.0, 1.0, 1.0, 2.0, 1.0]) == pytest.approx(2 / 256)
    assert p_value([0.0, 0.0, 0.0]) == 1
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
