"""An evaluation's summary, on cases counted by hand."""

from __future__ import annotations

import math
from typing import Literal

import pytest
from graded import graded

from rlobj.data import Problem
from rlobj.evaluation.estimators import share_interval, standard_errors
from rlobj.evaluation.graded import GradedBenchmark, GradedProblem
from rlobj.evaluation.summary import ProblemCounts, macro_average, summarise

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


def test_accuracy_is_the_mean_of_shares_of_right_responses_and_undecided_ones_are_wrong() -> None:
    summary = summarise(MIXED)
    assert (summary.problems, summary.responses, summary.samples_per_problem) == (5, 20, 4)
    assert summary.accuracy == pytest.approx((1 + 1 / 4 + 2 / 4 + 0 + 0) / 5)
    assert summary.standard_errors == standard_errors([4, 1, 2, 0, 0], [4] * 5)
    assert summary.interval.low < summary.accuracy < summary.interval.high
    assert summary.interval.method.startswith("bootstrap")


def test_the_numbers_count_problems_and_responses() -> None:
    numbers = summarise(MIXED).numbers
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
    summary = summarise(MIXED)
    assert list(summary.pass_at) == [1, 2, 4]
    assert summary.pass_at[4].values == (1, 1, 1, 0, 0)
    assert summary.pass_at[4].interval == share_interval([1, 1, 1, 0, 0])
    assert summary.pass_at_k(3).values == pytest.approx((1, 3 / 4, 1, 0, 0))


def test_majority_counts_ties_by_half_and_ignores_responses_without_an_answer() -> None:
    summary = summarise(MIXED)
    assert list(summary.maj_at) == [2, 4]
    assert summary.maj_at[4].values == pytest.approx((1, 0, 1, 0, 0))
    tie = GradedBenchmark("tie", (problem("a", RIGHT, WRONG, CUT, CUT),))
    assert summarise(tie).maj_at[4].values == (0.5,)


def test_majority_is_empty_if_the_grader_gives_no_answers() -> None:
    custom = {"correct": True, "reason": "custom", "answer": None, "tokens": 1, "finish": "stop"}
    answered = graded(Problem("a", "?", "1"), custom, custom)
    summary = summarise(GradedBenchmark("custom", (answered,)))
    assert summary.maj_at == {}
    assert summary.numbers["no_answer"] == 0.0


def test_problems_may_differ_in_their_number_of_responses() -> None:
    evaluation = GradedBenchmark("r", (problem("a", RIGHT), problem("b", WRONG, RIGHT, RIGHT)))
    summary = summarise(evaluation)
    assert summary.samples_per_problem == 3
    assert summary.accuracy == pytest.approx((1 + 2 / 3) / 2)
    assert {k: estimate.problems for k, estimate in summary.pass_at.items()} == {1: 2, 2: 1, 3: 1}


def test_counts_have_no_text() -> None:
    assert "It is" in str(MIXED)
    assert "It is" not in str([ProblemCounts.of(problem) for problem in MIXED.problems])


def test_numbers_without_problems_are_nan() -> None:
    empty = summarise(GradedBenchmark("empty", ()))
    numbers = (empty.accuracy, empty.interval.low, empty.numbers["length_right"])
    assert all(map(math.isnan, numbers))
    assert empty.pass_at == empty.maj_at == {}


def test_the_interval_of_an_average_adds_the_half_widths_of_its_benchmarks_in_quadrature() -> None:
    easy = GradedBenchmark("easy", tuple(problem(str(i), RIGHT, WRONG) for i in range(300)))
    mixed = GradedBenchmark(
        "mixed", tuple(problem(str(i), *[RIGHT] * (i % 3), *[WRONG] * 2) for i in range(20))
    )
    never = GradedBenchmark("never", tuple(problem(str(i), WRONG) for i in range(30)))
    each = [summarise(benchmark) for benchmark in (easy, mixed, never)]
    macro = macro_average(each)
    below = [one.accuracy - one.interval.low for one in each]
    above = [one.interval.high - one.accuracy for one in each]
    assert macro.interval.low == pytest.approx(macro.mean - math.hypot(*below) / 3)
    assert macro.interval.high == pytest.approx(macro.mean + math.hypot(*above) / 3)
    sampling = [one.standard_errors.sampling for one in each[:2]]
    both = macro_average(each[:2]).standard_errors
    assert both.sampling == pytest.approx(math.hypot(*sampling) / 2)
    assert above[2] > 0 == below[2]  # no right response: it may be better, and not worse
    assert macro_average(each[1:2]).interval[:2] == pytest.approx(each[1].interval[:2])
