"""maj@k, against enumeration of all subsets."""

from __future__ import annotations

import itertools

import pytest
from graded import graded
from hypothesis import given
from hypothesis import strategies as st

from rlobj.data import Problem
from rlobj.evaluation.estimators import Votes, count_votes
from rlobj.evaluation.samples import GradedProblem


def answered(*answers: tuple[str | None, bool | None]) -> GradedProblem:
    """A problem with responses of these (answer, verdict)."""
    samples = [{"answer": answer, "correct": correct} for answer, correct in answers]
    return graded(Problem("p", "?", "1"), *samples)


def by_enumeration(votes: Votes, k: int) -> float:
    ballots: list[int | None] = [None] * votes.without_answer
    for place, size in enumerate((votes.right, *votes.wrong)):
        ballots += [place] * size
    right = total = 0.0
    for subset in itertools.combinations(ballots, k):
        total += 1
        counts = [subset.count(place) for place in range(1 + len(votes.wrong))]
        if most := max(counts):
            winners = [place for place, count in enumerate(counts) if count == most]
            right += (0 in winners) / len(winners)
    return right / total


@given(st.integers(0, 4), st.lists(st.integers(1, 3), max_size=4), st.integers(0, 2))
def test_majority_is_the_expected_value_over_all_subsets(right, wrong, without_answer):
    votes = Votes(right, tuple(wrong), without_answer)
    for k in range(1, votes.responses + 1):
        assert votes.majority_at(k) == pytest.approx(by_enumeration(votes, k))


def test_majority_of_hundreds_of_samples_converges_to_the_larger_answer() -> None:
    votes = Votes(300, (212,), 0)
    assert votes.majority_at(512) == pytest.approx(1.0, abs=1e-12)
    assert 0.58 < votes.majority_at(1) < votes.majority_at(64) < votes.majority_at(256) <= 1.0
    with pytest.raises(ValueError, match="maj@513"):
        votes.majority_at(513)


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
    assert count_votes(problem) == Votes(right=2, wrong=(2, 1, 1), without_answer=2)
    assert count_votes(problem, equal) == Votes(right=2, wrong=(3, 1), without_answer=2)
    assert not {"7", "7.0"} & {text for pair in asked for text in pair}


def test_undecided_responses_vote_with_their_answer_and_are_not_right() -> None:
    same_text = answered(("7", True), ("7", None), ("8", False), ("8", None), ("9", None))
    assert count_votes(same_text) == Votes(2, (2, 1), 0)
    votes = answered(("8", False), ("eight", None))
    assert count_votes(votes, lambda a, b: True) == Votes(0, (2,), 0)
    assert count_votes(votes, lambda a, b: None) == Votes(0, (1, 1), 0)
