"""maj@n."""

from __future__ import annotations

import math

import pytest

from rlobj.data import Problem
from rlobj.evaluation.records import GradedProblem, ResponseRecord
from rlobj.evaluation.votes import Votes, count_votes
from rlobj.rewards import Graded


def answered(*answers: tuple[str | None, bool | None]) -> GradedProblem:
    """A problem with responses of these (answer, verdict)."""
    responses = tuple(ResponseRecord(i, 0, "", None, None) for i in range(len(answers)))
    grades = tuple(Graded(0.0, correct, "", answer) for answer, correct in answers)
    return GradedProblem(Problem("p", "?", "1"), responses, grades)


@pytest.mark.parametrize(
    ("right", "wrong", "undecided", "expected"),
    [
        (3, (2, 2), (), 1.0),
        (2, (3,), (), 0.0),
        (2, (2, 2), (1,), 1 / 3),
        (0, (), (), 0.0),
        (2, (2,), (2,), 0.5),
    ],
)
def test_majority_counts_a_tie_by_the_share_of_the_gold_answer(
    right: int, wrong: tuple[int, ...], undecided: tuple[int, ...], expected: float
) -> None:
    assert Votes(right, wrong, undecided, 2).majority == expected


def test_answers_are_grouped_by_text_then_by_equality() -> None:
    asked = []

    def equal(one: str, other: str) -> bool | None:
        asked.append((one, other))
        return {one, other} == {"0.5", r"\dfrac{1}{2}"}

    problem = answered(
        ("7", True),
        ("7.0", True),
        (r"\dfrac{1}{2}", False),
        (r" \frac{1} {2} ", False),
        ("0.5", False),
        ("9", False),
        (None, False),
        (None, None),
    )
    assert count_votes(problem) == Votes(right=2, wrong=(2, 1, 1), undecided=(), without_answer=2)
    assert count_votes(problem, equal) == Votes(
        right=2, wrong=(3, 1), undecided=(), without_answer=2
    )
    assert not {"7", "7.0"} & {text for pair in asked for text in pair}


def test_undecided_responses_vote_with_their_answer() -> None:
    same_text = answered(("7", True), ("7", None), ("8", False), ("8", None), ("9", None))
    assert count_votes(same_text) == Votes(2, (2,), (1,), 0)
    votes = answered(("8", False), ("eight", None))
    assert count_votes(votes, lambda a, b: True) == Votes(0, (2,), (), 0)
    assert count_votes(votes, lambda a, b: None) == Votes(0, (1,), (1,), 0)


def test_majority_is_nan_if_an_undecided_answer_always_wins() -> None:
    assert math.isnan(Votes(1, (), (3,), 0).majority)
    assert Votes(1, (), (1,), 0).majority == 1.0  # a tie, and one of its two ends is unknown
