"""Two evaluations of the same problems, compared problem by problem."""

from __future__ import annotations

import math

import pytest
from graded import VERDICTS, graded

from rlobj.base.errors import DataError
from rlobj.data import Problem
from rlobj.evaluation.comparing import compare_benchmark
from rlobj.evaluation.graded import GradedBenchmark


def evaluation(right: dict[str, str], gold: str = "1", prompt: str = "?") -> GradedBenchmark:
    """Problems by id; each sample is + (right), - (wrong) or ? (undecided)."""
    problems = [
        graded(Problem(name, prompt, gold), *({"correct": VERDICTS[each]} for each in samples))
        for name, samples in right.items()
    ]
    return GradedBenchmark("set", tuple(problems))


A = evaluation({"a": "++++", "b": "++--", "c": "+---", "d": "+++-"})
B = evaluation({"d": "+---", "c": "+---", "b": "+---", "a": "++++"})


def test_differences_are_paired_by_id() -> None:
    comparison = compare_benchmark(A, B)
    differences = [0, 0.25, 0, 0.5]
    assert comparison.differences == pytest.approx(differences)
    assert comparison.difference == pytest.approx(0.1875)
    assert comparison.difference == pytest.approx(comparison.means[0] - comparison.means[1])
    assert comparison.interval.low <= 0.1875 <= comparison.interval.high
    assert comparison.p_value == 0.5  # two signs of ±1/4 ± 1/2
    assert comparison.problems == 4


def test_changes_are_problems_with_different_shares_and_flips_those_that_one_side_solves() -> None:
    left = evaluation({"a": "++++", "b": "+++-", "c": "++--", "d": "----"})
    right = evaluation({"a": "++++", "b": "++--", "c": "+---", "d": "++++"})
    changes = compare_benchmark(left, right).changes
    assert [(each.id, each.difference, each.is_flip) for each in changes] == [
        ("d", -1.0, True),
        ("b", 0.25, True),
        ("c", 0.25, False),
    ]
    flips = compare_benchmark(left, right).flips
    assert [(flip.id, flip.share_a, flip.share_b) for flip in flips] == [
        ("d", 0.0, 1.0),
        ("b", 0.75, 0.5),
    ]
    assert [flip.difference for flip in flips] == [-1.0, 0.25]


def test_problems_that_cannot_be_paired_are_listed_and_left_out() -> None:
    comparison = compare_benchmark(
        evaluation({"a": "+", "b": "+"}), evaluation({"a": "-", "c": "+"})
    )
    assert comparison.problems == 1
    assert (comparison.only_a, comparison.only_b) == (("b",), ("c",))


def test_undecided_responses_are_wrong_and_the_difference_has_bounds() -> None:
    left = evaluation({"a": "+??-", "b": "++++"})
    right = evaluation({"a": "++--", "b": "?"})
    comparison = compare_benchmark(left, right)
    assert comparison.differences == (-0.25, 1.0)
    assert comparison.means == (0.625, 0.25)
    assert comparison.bounds == (0.375 - 0.5, 0.375 + 0.25)


def test_different_numbers_of_samples_are_compared_exactly() -> None:
    left = evaluation({"a": "+++", "b": "++-", "c": "-?-"})
    right = evaluation({"a": "++--", "b": "+----", "c": "-"})
    comparison = compare_benchmark(left, right)
    assert comparison.differences == pytest.approx((1 / 2, 2 / 3 - 1 / 5, 0))
    assert comparison.p_value == 0.5


def test_equal_evaluations_have_difference_zero_and_p_value_one() -> None:
    comparison = compare_benchmark(A, A)
    assert (comparison.difference, comparison.p_value, comparison.flips) == (0.0, 1.0, ())
    assert math.isnan(comparison.interval.low)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (
            evaluation({"a": "+", "d": "-"}, gold="2"),
            "2 of 2 ids have another gold answer .'a', 'd'",
        ),
        (evaluation({"a": "+", "z": "-"}, prompt="!"), "another question .'a'."),
        (evaluation({"z": "+"}), "Nothing to compare"),
    ],
    ids=["gold", "question", "ids"],
)
def test_error_if_the_problems_differ(other: GradedBenchmark, word: str) -> None:
    with pytest.raises(DataError, match=word):
        compare_benchmark(A, other)


def test_whitespace_around_a_question_is_ignored() -> None:
    assert compare_benchmark(A, evaluation({"a": "+"}, prompt=" ?\n")).problems == 1
