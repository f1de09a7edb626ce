"""The numbers of a run and the statistics, on data whose truth is known."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.harness import wilson
from benchmarks.stability import analysis
from benchmarks.stability.runs import Run
from scipy import stats
from stability_runs import EDGE, write_run

RUN = Run(replace(EDGE, steps=40), "stapo", 3)


def test_last_best_and_area_are_those_of_the_plan(tmp_path: Path) -> None:
    found = analysis.outcome(write_run(tmp_path, RUN, [0.5, 0.9, 0.4, 0.3, 0.2]))
    assert found is not None
    assert (found.seed, found.failed, found.best) == (3, "", 0.9)
    assert found.last == pytest.approx(0.3)  # the mean of the last three
    assert found.area == pytest.approx(0.45)  # without the one before training
    assert (found.degraded, found.collapsed) == (True, False)


@pytest.mark.parametrize(
    ("last", "degraded", "collapsed"),
    [(0.51, False, False), (0.26, True, False), (0.24, True, True)],
)
def test_degraded_is_below_the_first_accuracy_and_collapsed_below_half_of_it(
    tmp_path: Path, last: float, degraded: bool, collapsed: bool
) -> None:
    found = analysis.outcome(write_run(tmp_path, RUN, [0.5, last, last, last]))
    assert found is not None
    assert (found.degraded, found.collapsed) == (degraded, collapsed)


def test_a_failed_run_counts_as_collapsed_with_last_0(tmp_path: Path) -> None:
    folder = write_run(tmp_path, RUN, [0.5, 0.9, 0.9, 0.9], ended="failed: exit status -9")
    found = analysis.outcome(folder)
    assert found is not None
    assert found.failed == "failed: exit status -9"
    assert (found.last, found.degraded, found.collapsed) == (0.0, True, True)


def test_a_run_without_a_held_out_accuracy_does_not_count(tmp_path: Path) -> None:
    assert analysis.outcome(write_run(tmp_path, RUN, [])) is None


def test_a_run_in_progress_has_no_numbers(tmp_path: Path) -> None:
    assert analysis.outcome(write_run(tmp_path, RUN, [0.5, 0.9], ended="")) is None


@pytest.mark.parametrize(
    ("entropies", "course"),
    [((0.2, 0.019), "collapsed"), ((0.2, 0.021), "between"), ((0.2, 0.21), "exploded")],
)
def test_the_entropy_collapses_below_a_tenth_and_explodes_above_the_start(
    tmp_path: Path, entropies: tuple[float, float], course: str
) -> None:
    found = analysis.outcome(write_run(tmp_path, RUN, [0.5, 0.9], entropies))
    assert found is not None
    assert found.entropy_course == course
    assert (found.entropy_first, found.entropy_last) == pytest.approx(entropies)
    assert found.entropies == pytest.approx([entropies[0]] * 2 + [entropies[1]] * 2)


def test_the_entropy_at_the_end_is_that_of_20_steps() -> None:
    steps = [{"policy/entropy": float(step)} for step in range(1, 101)]
    assert analysis.entropy_course(steps) == (5.5, 90.5, "exploded")


def test_a_metric_that_is_null_is_left_out_of_means() -> None:
    lines = [{"a": 1.0}, {"a": None}, {}, {"a": 2.0}]
    assert analysis.average(lines, "a") == 1.5
    assert analysis.average(lines, "b") is None
    assert analysis.total(lines, "a") == 3.0


CUT = "selected/surprisal.top(0.1, within=advantage > 0, at_least=1)"
GUARDED = "selected/logprob.bottom(0.01, within=advantage < 0, round='floor', none_below=2)"


@pytest.mark.parametrize(
    ("step", "share"),
    [
        (
            {"tokens/step": 1000.0, "tokens/dropped": 5.0, "selected/entropy.bottom(0.8)": 0.8},
            0.005,
        ),
        ({"controller/W": 1.1, CUT: 0.1, "advantage/positive_share": 0.5}, 0.05),
        ({"controller/W": 1.0, CUT: 0.1, "advantage/positive_share": 0.5}, 0.0),
        ({GUARDED: 0.01, "advantage/negative_share": 0.4}, 0.004),
        ({"tokens/step": 1000.0, "tokens/dropped": 0.0}, 0.0),
    ],
)
def test_tokens_touched_are_dropped_reweighted_or_protected(step: dict, share: float) -> None:
    assert analysis.touched(step) == pytest.approx(share)


def test_the_share_of_spurious_tokens_is_that_of_tokens_in_right_responses(tmp_path: Path) -> None:
    each = {"spurious/tokens": 25.0, "spurious/dropped": 4.0, "spurious/caught": 3.0}
    found = analysis.outcome(write_run(tmp_path, RUN, [0.5, 0.9], more=each))
    assert found is not None
    counts = found.counts
    assert counts["spurious first"] / counts["right first"] == pytest.approx(25 / 500)
    assert counts["spurious last"] / counts["right last"] == pytest.approx(25 / 500)
    assert (counts["caught"], counts["judged dropped"], counts["spurious"]) == (120, 160, 1000)


# Intervals cover the truth as often as they say.


def test_wilson_intervals_of_20_runs_cover_the_true_share_about_95_times_in_100() -> None:
    intervals = [wilson(hits, 20) for hits in range(21)]
    covered = []
    for share in np.linspace(0.02, 0.98, 97):
        chances = stats.binom.pmf(np.arange(21), 20, share)
        covered.append(
            sum(p for p, (a, b) in zip(chances, intervals, strict=True) if a <= share <= b)
        )
    assert np.mean(covered) == pytest.approx(0.95, abs=0.01)
    assert min(covered) > 0.83


def test_wilson_intervals_are_those_of_the_formula() -> None:
    z, n, p = stats.norm.ppf(0.975), 20, 3 / 20
    middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n))
    assert wilson(3, 20) == pytest.approx((low, high))


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 7])
def test_paired_t_intervals_cover_the_true_difference_as_often_as_they_say(level: float) -> None:
    noise = np.random.default_rng(1)
    hits, rounds = 0, 2000
    for _ in range(rounds):
        low, high = analysis.t_interval(noise.normal(0.05, 0.12, 20).tolist(), level) or (1, 0)
        hits += low <= 0.05 <= high
    error = 4 * np.sqrt(level * (1 - level) / rounds)
    assert hits / rounds == pytest.approx(level, abs=error)


def test_one_value_has_no_interval() -> None:
    assert analysis.t_interval([0.3]) is None


# The sign-flip test.


def test_the_sign_flip_test_of_three_differences_is_that_of_a_hand_calculation() -> None:
    assert analysis.sign_flip([1.0, 2.0, 3.0]) == 2 / 8  # all signs plus, all minus
    assert analysis.sign_flip([1.0, 2.0, -3.0]) == 1.0
    assert analysis.sign_flip([1.0, 2.0, -0.5]) == 4 / 8
    assert analysis.sign_flip([0.0, 0.0]) == 1.0


def test_the_sign_flip_test_is_scipys_exact_one_also_with_ties() -> None:
    noise = np.random.default_rng(2)
    for _ in range(5):
        values = noise.integers(-20, 30, 9) / 1024
        theirs = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=np.inf
        )
        assert analysis.sign_flip(values.tolist()) == pytest.approx(theirs.pvalue, rel=1e-12)


def test_above_20_pairs_random_signs_stand_for_all_signs() -> None:
    values = np.random.default_rng(3).normal(0.05, 0.12, 24).tolist()
    normal = stats.ttest_1samp(values, 0).pvalue
    assert analysis.sign_flip(values) == pytest.approx(normal, abs=0.01)


def test_the_sign_flip_test_errs_at_most_as_often_as_its_level() -> None:
    sizes = np.abs(np.random.default_rng(4).normal(0, 0.1, 8))
    p = [analysis.sign_flip(list(sizes * s)) for s in itertools.product((-1, 1), repeat=8)]
    for level in (0.01, 0.05, 0.5):
        assert np.mean(np.array(p) <= level) <= level
    assert np.mean(np.array(p) <= 0.05) > 0.04  # it is not idle either


# Corrections, shares, power.


def test_holm_is_that_of_a_hand_calculation() -> None:
    p = {"g": 0.9, "a": 0.001, "c": 0.02, "b": 0.01, "d": 0.021, "e": 0.3, "f": 0.5}
    found = analysis.holm(p)
    expected = {"a": 0.007, "b": 0.06, "c": 0.1, "d": 0.1, "e": 0.9, "f": 1.0, "g": 1.0}
    assert found == pytest.approx(expected)  # d: 4 · 0.021 is below c's


def test_holm_counts_comparisons_that_are_not_made_yet() -> None:
    assert analysis.holm({"a": 0.001, "b": 0.01}) == pytest.approx({"a": 0.007, "b": 0.06})


def test_mcnemar_reads_only_the_pairs_that_differ() -> None:
    ours = [True] * 6 + [True] * 5 + [False] * 9
    base = [False] * 6 + [True] * 5 + [False] * 9
    assert analysis.mcnemar(ours, base) == pytest.approx(2 / 2**6)
    assert analysis.mcnemar(base, ours) == pytest.approx(2 / 2**6)
    assert analysis.mcnemar(base, base) == 1.0


def test_the_power_is_that_of_published_tables() -> None:
    assert analysis.power(0.5, 1.0, 20, 0.05) == pytest.approx(0.565, abs=0.001)  # G*Power 3
    assert analysis.power(0.5, 1.0, 34, 0.05) == pytest.approx(0.808, abs=0.001)
    assert analysis.power(0.0, 1.0, 20, 0.01) == pytest.approx(0.01, abs=1e-6)


@pytest.mark.parametrize("pairs", [2, 5, 20, 80])
def test_the_detectable_difference_has_the_wanted_power(pairs: int) -> None:
    found = analysis.detectable(0.12, pairs, 0.05 / 7)
    assert analysis.power(found, 0.12, pairs, 0.05 / 7) == pytest.approx(0.8, abs=1e-6)


def test_a_comparison_pairs_runs_by_their_seed() -> None:
    def run(seed: int, last: float) -> analysis.Outcome:
        return analysis.Outcome(seed, "", [0.5], last=last, degraded=last < 0.5, collapsed=False)

    ours = {2: run(2, 0.9), 0: run(0, 0.3), 7: run(7, 0.1)}
    base = {0: run(0, 0.2), 1: run(1, 0.9), 2: run(2, 0.7)}
    found = analysis.compare("stapo", "dapo-loss", {"stapo": ours, "dapo-loss": base})
    assert found is not None
    assert found.seeds == [0, 2]
    assert found.difference == pytest.approx((0.1 + 0.2) / 2)
    assert found.interval is not None
    assert found.wide is not None
    assert found.wide[0] < found.interval[0] < found.difference < found.interval[1] < found.wide[1]
    assert found.p == 0.5
    assert analysis.compare("stapo", "grpo", {"stapo": ours}) is None
    json.dumps(found.__dict__)
