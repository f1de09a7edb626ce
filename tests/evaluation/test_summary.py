"""An evaluation's summary, on cases counted by hand."""

from __future__ import annotations

import math
import re
from typing import Literal

import pytest
from graded import graded

from rlobj.data import Problem
from rlobj.evaluation.estimators import macro_average, sampling_error, share_interval
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem

Sample = tuple[bool | None, str | None, int, Literal["stop", "length"]]


def problem(name: str, *samples: Sample) -> GradedProblem:
    """A problem whose samples are (verdict, answer, tokens, finish)."""
    names = ("correct", "answer", "tokens", "finish")
    rows = [dict(zip(names, sample, strict=True)) for sample in samples]
    for row in rows:
        row["text"] = "so on" if row["answer"] is None else rf"It is \boxed{{{row['answer']}}}."
    return graded(Problem(name, "?", "1"), *rows)


RIGHT: Sample = (True, "1", 10, "stop")
WRONG: Sample = (False, "2", 30, "stop")
OTHER: Sample = (False, "3", 50, "stop")
CUT: Sample = (False, None, 100, "length")
OPEN: Sample = (None, "x^{1}", 20, "stop")

MIXED = GradedBenchmark(
    "mixed",
    (
        problem("a", RIGHT, RIGHT, RIGHT, RIGHT),
        problem("b", RIGHT, WRONG, WRONG, CUT),
        problem("c", RIGHT, RIGHT, OPEN, OTHER),
        problem("d", OPEN, OPEN, OPEN, OPEN),
        problem("e", CUT, CUT, WRONG, OTHER),
    ),
)


def at_k(name: str, benchmark: GradedBenchmark) -> list[int]:
    """The k of which results.json has pass@k or maj@k."""
    return [int(k) for k in re.findall(rf"{name}@(\d+)\n", "\n".join(benchmark.numbers) + "\n")]


def test_accuracy_is_the_mean_of_shares_of_right_responses_and_undecided_ones_are_wrong() -> None:
    estimate = MIXED.estimate
    assert (len(MIXED.problems), len(MIXED.responses), MIXED.samples) == (5, 20, 4)
    assert MIXED.accuracy == estimate.mean == pytest.approx((1 + 1 / 4 + 2 / 4 + 0 + 0) / 5)
    verdicts = [[1] * right + [0] * (4 - right) for right in (4, 1, 2, 0, 0)]
    assert estimate.stderr_sampling == sampling_error(verdicts)
    assert estimate.interval.low < estimate.mean < estimate.interval.high
    assert estimate.interval.method.startswith("bootstrap")


def test_the_numbers_count_problems_and_responses() -> None:
    numbers = MIXED.numbers
    tokens = [10] * 7 + [30] * 3 + [50] * 2 + [100] * 3 + [20] * 5
    expected = {
        "truncated": 3 / 20,
        "no_answer": 3 / 20,
        "format": 17 / 20,
        "solve_all": 1,
        "solve_none": 2,
        "undecided": 5,
        "length_mean": sum(tokens) / 20,
        "length_median": 20,
        "length_right": 10,
        "length_wrong": (3 * 30 + 2 * 50 + 3 * 100) / 8,
    }
    assert {name: numbers[name] for name in expected} == pytest.approx(expected)
    assert numbers["avg@4_bounds"] == pytest.approx([(1.25 + 2 / 4) / 5, (1.25 + 3 / 4 + 1) / 5])
    assert numbers["undecided_reasons"] == {"timeout": 5}


def test_pass_at_k_counts_undecided_responses_as_wrong() -> None:
    assert at_k("pass", MIXED) == [1, 2, 4]
    assert MIXED.numbers["pass@4"] == 3 / 5
    assert MIXED.numbers["pass@4_interval"] == list(share_interval([1, 1, 1, 0, 0])[:2])
    assert MIXED.pass_at_k(3).values == pytest.approx((1, 3 / 4, 1, 0, 0))


def test_majority_counts_ties_by_half_and_ignores_responses_without_an_answer() -> None:
    assert at_k("maj", MIXED) == [2, 4]
    assert MIXED.maj_at_k(4).values == pytest.approx((1, 0, 1, 0, 0))
    tie = GradedBenchmark("tie", (problem("a", RIGHT, WRONG, CUT, CUT),))
    assert tie.maj_at_k(4).values == (0.5,)


def test_majority_is_empty_if_the_grader_gives_no_answers() -> None:
    custom = {"correct": True, "reason": "custom", "answer": None, "tokens": 1, "finish": "stop"}
    answered = graded(Problem("a", "?", "1"), custom, custom)
    benchmark = GradedBenchmark("custom", (answered,))
    assert at_k("maj", benchmark) == []
    assert benchmark.numbers["no_answer"] == 0.0


def test_problems_may_differ_in_their_number_of_responses() -> None:
    benchmark = GradedBenchmark("r", (problem("a", RIGHT), problem("b", WRONG, RIGHT, RIGHT)))
    assert benchmark.samples == 3
    assert benchmark.accuracy == pytest.approx((1 + 2 / 3) / 2)
    assert [len(benchmark.pass_at_k(k).values) for k in (1, 2, 3)] == [2, 1, 1]
    assert (benchmark.numbers["pass@2_problems"], "pass@1_problems" in benchmark.numbers) == (
        1,
        False,
    )
    assert ("pass@2", "100.0 (of 1)") in [(one.row, one.text) for one in benchmark.measures]


def test_the_interval_of_an_average_adds_the_half_widths_of_its_benchmarks_in_quadrature() -> None:
    easy = GradedBenchmark("easy", tuple(problem(str(i), RIGHT, WRONG) for i in range(300)))
    mixed = GradedBenchmark(
        "mixed", tuple(problem(str(i), *[RIGHT] * (i % 3), *[WRONG] * 2) for i in range(20))
    )
    never = GradedBenchmark("never", tuple(problem(str(i), WRONG) for i in range(30)))
    each = [benchmark.estimate for benchmark in (easy, mixed, never)]
    macro = macro_average(each)
    below = [one.mean - one.interval.low for one in each]
    above = [one.interval.high - one.mean for one in each]
    assert macro.interval.low == pytest.approx(macro.mean - math.hypot(*below) / 3)
    assert macro.interval.high == pytest.approx(macro.mean + math.hypot(*above) / 3)
    sampling = [one.stderr_sampling for one in each[:2]]
    assert macro_average(each[:2]).stderr_sampling == pytest.approx(math.hypot(*sampling) / 2)
    assert above[2] > 0 == below[2]  # no right response: it may be better, and not worse
    assert macro_average(each[1:2]).interval[:2] == pytest.approx(each[1].interval[:2])
