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
    found = [change.difference for change in comparison.compared]
    assert found == pytest.approx(differences)
    assert comparison.difference == pytest.approx(0.1875)
    assert comparison.difference == pytest.approx(comparison.means[0] - comparison.means[1])
    assert comparison.interval.low <= 0.1875 <= comparison.interval.high
    assert comparison.p_value == 0.5  # two signs of ±1/4 ± 1/2
    assert len(compare_benchmark(A, evaluation({"a": "+"}, prompt=" ?\n")).compared) == 1
    same = compare_benchmark(A, A)
    assert (same.difference, same.p_value, same.changes) == (0.0, 1.0, ())
    assert math.isnan(same.interval.low)


def test_changes_are_listed_and_problems_of_one_side_left_out() -> None:
    left = evaluation({"a": "++++", "b": "+++-", "c": "++--", "d": "----", "e": "+"})
    right = evaluation({"a": "++++", "b": "++--", "c": "+---", "d": "++++", "f": "+"})
    comparison = compare_benchmark(left, right)
    changes = [(change.id, change.difference) for change in comparison.changes]
    assert changes == [("d", -1.0), ("b", 0.25), ("c", 0.25)]
    assert (len(comparison.compared), comparison.left_out) == (4, 2)


def test_undecided_responses_are_wrong() -> None:
    left = evaluation({"a": "+??-", "b": "++++"})
    right = evaluation({"a": "++--", "b": "?"})
    comparison = compare_benchmark(left, right)
    assert [change.difference for change in comparison.compared] == [-0.25, 1.0]
    assert comparison.means == (0.625, 0.25)


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (evaluation({"a": "+", "d": "-"}, gold="2"), "2 of 2 problem ids have another gold answer"),
        (evaluation({"a": "+", "z": "-"}, prompt="!"), "another question .* such as 'a'"),
        (evaluation({"z": "+"}), "Nothing to compare"),
    ],
    ids=["gold", "question", "ids"],
)
def test_error_if_the_problems_differ(other: GradedBenchmark, word: str) -> None:
    with pytest.raises(DataError, match=word):
        compare_benchmark(A, other)
