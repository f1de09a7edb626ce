"""The numbers of a run of the stability study, and its statistics."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.stability import analysis
from benchmarks.stability.outcomes import Outcome, outcome
from benchmarks.stability.plan import Arm, Run
from scipy import stats
from stability_runs import write_run

RUN = Run("regime", replace(Arm.of("dapo-loss", "static"), steps=10), 0)


def made(tmp_path: Path, *accuracies: float, seed: int = 0, tokens: float = 1000.0) -> Outcome:
    run = Run("regime", replace(RUN.arm, steps=10 * len(accuracies) - 10), seed)
    write_run(tmp_path, run, accuracies, tokens=tokens)
    found = outcome(run, tmp_path)
    assert found is not None
    return found


def test_the_accuracy_is_the_mean_of_an_evaluation_and_the_two_before_it(tmp_path: Path) -> None:
    run = made(tmp_path, 0.5, 0.7, 0.9, 0.8, 1.0)
    assert run.smooth == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
    assert run.last == pytest.approx(0.9)


def test_a_run_reaches_the_goal_at_its_first_evaluation_with_that_accuracy(tmp_path: Path) -> None:
    run = made(tmp_path, 0.5, 0.7, 0.9, 0.8, 1.0, 0.5)
    found = [run.reached(unit) for unit in ("steps", "tokens", "seconds")]
    assert found == [40, 40_000, pytest.approx(40 * 0.75 / 2)]  # half of the wall time is CPU time
    assert run.reached(goal=0.95) is None
    assert run.accuracy_at(29_999) == pytest.approx(0.7)
    assert run.accuracy_at(30_000) == pytest.approx(0.8)


@pytest.mark.parametrize(("end", "collapsed"), [(0.26, False), (0.24, True)])
def test_a_run_collapsed_if_it_ends_below_half_of_its_first_accuracy(
    tmp_path: Path, end: float, collapsed: bool
) -> None:
    assert made(tmp_path, 0.5, 0.9, end, end, end).collapsed == collapsed


def test_a_failed_run_ends_with_accuracy_0_and_keeps_what_it_reached(tmp_path: Path) -> None:
    write_run(tmp_path, RUN, [0.9, 0.9], failed="killed")
    run = outcome(RUN, tmp_path)
    assert run is not None
    assert (run.failed, run.last, run.collapsed, run.reached()) == ("killed", 0.0, True, 0.0)


def test_a_run_in_progress_has_no_numbers(tmp_path: Path) -> None:
    (write_run(tmp_path, RUN, [0.5, 0.6]) / "done").unlink()
    assert outcome(RUN, tmp_path) is None


def test_the_band_is_20_percent_around_the_target(tmp_path: Path) -> None:
    write_run(tmp_path, RUN, [0.5, 0.6], entropy=0.119)
    run = outcome(RUN, tmp_path)
    assert run is not None
    assert run.in_band == {"0.05": 0.0, "0.1": 1.0, "0.2": 0.0}
    assert run.entropies == pytest.approx([0.119])


def test_the_permutation_test_is_scipys_for_one_stratum() -> None:
    draw = np.random.default_rng(1)
    ours, base = draw.normal(0.8, 1, 6), draw.normal(0, 1, 5)
    exact = stats.permutation_test(
        (ours, base), lambda a, b: a.mean() - b.mean(), n_resamples=100_000
    )
    assert analysis.permutation([(ours, base)]) == pytest.approx(exact.pvalue, abs=0.006)


def test_the_permutation_test_reads_the_effect_within_strata() -> None:
    """The strata differ by 100, and each has an effect of 1."""
    strata = [([101.0, 101.1, 101.2], [100.0, 100.1, 100.2]), ([1.0, 1.1, 1.2], [0.0, 0.1, 0.2])]
    assert analysis.permutation(strata) == pytest.approx(2 / 20**2, abs=0.002)


def test_the_interval_is_welchs_and_covers_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    ours, base = draw.normal(0, 1, 6), draw.normal(0, 2, 5)
    welch = stats.ttest_ind(ours, base, equal_var=False).confidence_interval()
    assert analysis.effect([(ours, base)]).interval == pytest.approx((welch.low, welch.high))
    covered = 0
    for _ in range(300):
        strata = [(draw.normal(m + 0.5, 1, 6), draw.normal(m, s, 5)) for m, s in ((0, 1), (3, 2))]
        low, high = analysis._welch(strata, np.mean([a.mean() - b.mean() for a, b in strata])) or ()
        covered += low <= 0.5 <= high
    assert covered / 300 == pytest.approx(0.95, abs=0.04)


def test_one_run_on_a_side_has_no_interval() -> None:
    assert analysis.effect([([1.0], [0.5, 0.4])]).interval is None


def test_holm_counts_comparisons_that_are_not_made_yet() -> None:
    found = analysis.holm({"a": 0.01, "b": 0.04, "c": 0.03}, of=4)
    assert found == pytest.approx({"a": 0.04, "c": 0.09, "b": 0.09})


def test_the_cost_is_compared_within_the_tokens_that_all_runs_generated(tmp_path: Path) -> None:
    """One side reaches the goal at 20,000 and 40,000 tokens; the other one not in 50,000."""
    fast = [
        made(tmp_path, 0.5, 0.9, 1.0, 0.9, 0.9, 0.9, seed=0, tokens=1000),
        made(tmp_path, 0.5, 0.9, 1.0, 0.9, 0.9, 0.9, seed=1, tokens=2000),
    ]
    slow = [made(tmp_path, *[0.5] * 6, seed=seed, tokens=1000) for seed in (2, 3)]
    found = analysis.cost([(fast, slow)])
    assert fast[0].reached() == 30_000
    assert found.difference == pytest.approx(
        (math.log2(30_000) + math.log2(50_000)) / 2 - math.log2(50_000)
    )
    assert analysis.cost([(fast, slow)], "steps").difference == pytest.approx(math.log2(30 / 50))
    at = analysis.at_equal_tokens([(fast, slow)])
    assert at.difference == pytest.approx((fast[0].smooth[5] + fast[1].smooth[2]) / 2 - 0.5)
