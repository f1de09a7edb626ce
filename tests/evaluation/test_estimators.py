"""pass@k, maj@k, standard errors, intervals and p-values, against enumeration and simulation."""

from __future__ import annotations

import itertools
import math
from statistics import mean, stdev

import pytest
import torch
from graded import graded
from hypothesis import given
from hypothesis import strategies as st

from rlobj.data import Problem
from rlobj.evaluation import estimators
from rlobj.evaluation.estimators import (
    RESAMPLES,
    Estimate,
    bootstrap_interval,
    paired_p_value,
    pass_at_k,
    sampling_error,
    share_interval,
)
from rlobj.evaluation.graded import GradedProblem, Votes, count_votes

# pass@k


@given(st.integers(1, 6), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = itertools.combinations([True] * c + [False] * (n - c), k)
    assert pass_at_k(n, c, k) == pytest.approx(mean(map(any, subsets)), abs=1e-15)


def test_pass_at_k_is_exact_for_thousands_of_samples_and_refuses_more() -> None:
    assert (pass_at_k(4096, 1, 4096), pass_at_k(4096, 1, 1)) == (1.0, 1 / 4096)
    with pytest.raises(ValueError, match="pass@5 needs"):
        pass_at_k(4, 2, 5)


# standard errors


def test_standard_errors_by_hand() -> None:
    inner = 0.25 * 0.75 / 3 + 0 + 0.5 * 0.5 / 3
    verdicts = [[1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert sampling_error(verdicts) == pytest.approx(math.sqrt(inner) / 3)
    problems = stdev([0.25, 1, 0.5]) / math.sqrt(3)
    assert Estimate((0.25, 1, 0.5)).stderr == pytest.approx(problems)
    assert math.isnan(sampling_error([[1]]))
    assert math.isnan(Estimate((1,)).stderr)


# intervals


def test_a_single_proportion_has_wilsons_interval_of_the_textbook() -> None:
    low, high, method = share_interval([1.0] * 81 + [0.0] * 182)  # Newcombe 1998, table I, method 3
    assert (round(low, 4), round(high, 4), method) == (0.2553, 0.3662, "Wilson")
    assert share_interval([0.0] * 29)[:2] == (0.0, pytest.approx(0.1170, abs=5e-5))


@pytest.mark.parametrize("values", [[0.25] * 8, [1 / 3] * 30, [0.5], [0.3] * 7])
def test_equal_shares_have_the_interval_of_whole_problems_around_them(values: list[float]) -> None:
    whole, count = round(math.fsum(values), 9), len(values)
    below, above = (
        share_interval([1.0] * number + [0.0] * (count - number))
        for number in (math.floor(whole), math.ceil(whole))
    )
    assert share_interval(values) == (below.low, above.high, "Wilson")


@given(st.permutations([0.0, 0.125, 0.125, 0.5, 1.0, 1 / 3, 0.9]))
def test_a_bootstrap_interval_does_not_depend_on_the_order(values: list[float]) -> None:
    interval = share_interval(values)
    assert interval == share_interval(sorted(values))
    assert interval.low < mean(values) < interval.high
    assert interval.method == "bootstrap over problems (BCa)"


def test_the_interval_of_no_value_is_nan() -> None:
    assert math.isnan(share_interval([]).low)
    assert math.isnan(bootstrap_interval([0.5, 0.5]).low)
    assert math.isnan(Estimate(()).mean)


def evaluations(a: float, b: float, runs: int, samples: int, *able: float) -> list[torch.Tensor]:
    """Right responses [runs, 30] to problems of Beta(a, b) difficulty, one tensor per ability."""
    generator = torch.Generator().manual_seed(0)
    concentration = torch.tensor([a, b], dtype=torch.float64).expand(runs, 30, 2).contiguous()
    chances = torch._sample_dirichlet(concentration, generator=generator)[..., 0]
    count = torch.full_like(chances, samples)
    return [torch.binomial(count, chances * share, generator=generator) for share in able]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "least"),
    [(0.5, 0.4, 0.93), (1.0, 1.0, 0.93), (2.0, 0.2, 0.92), (0.15, 1.5, 0.90)],
    ids=["bimodal", "uniform", "easy", "hard"],
)
def test_intervals_for_thirty_problems_contain_the_mean(a, b, least, monkeypatch):
    """400 evaluations of 30 problems of Beta(a, b) difficulty with 32 samples each."""
    monkeypatch.setattr(estimators, "RESAMPLES", 2000)
    [right] = evaluations(a, b, 400, 32, 1.0)
    covered = 0
    for shares in (right / 32).tolist():
        low, high, _ = share_interval(shares)
        covered += low <= a / (a + b) <= high
    assert least <= covered / 400 <= 0.98


# p-values


def enumerated(differences: list[int]) -> float:
    sums = [
        sum(sign * d for sign, d in zip(signs, differences, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    return mean(abs(total) >= abs(sum(differences)) for total in sums)


@given(st.lists(st.integers(-8, 8), min_size=1, max_size=9))
def test_the_p_value_is_the_enumeration_of_all_signs(differences: list[int]) -> None:
    assert paired_p_value(differences) == pytest.approx(enumerated(differences), abs=1e-12)


def test_with_one_sample_per_problem_it_is_mcnemars_exact_test():
    better, worse = 12, 3  # two-sided binomial test of 3 out of 15
    expected = 2 * sum(math.comb(15, i) for i in range(worse + 1)) / 2**15
    noise = math.sqrt(expected * (1 - expected) / RESAMPLES)
    for unmoved in (2, 485):
        drawn = paired_p_value([1] * better + [-1] * worse + [0] * unmoved)
        assert drawn == pytest.approx(expected, abs=4 * noise)


def test_five_problems_show_no_difference_and_six_do() -> None:
    assert paired_p_value([0.5, 0.6, 0.7, 0.8, 0.9]) == 2 / 2**5
    assert paired_p_value([0.5, 0.6, 0.7, 0.8, 0.9, 1.0]) == 2 / 2**6
    assert paired_p_value([0.5]) == paired_p_value([0.0, 0.0]) == 1.0


def test_skewed_differences_are_rejected_as_often_as_the_page_says() -> None:
    """A is better by 0.1 on 90% of 30 problems and worse by 0.9 on 10%: the true mean is 0."""
    rejected = 0.0
    for worse in range(31):
        chance = math.comb(30, worse) * 0.1**worse * 0.9 ** (30 - worse)
        if chance > 1e-4:
            p_value = paired_p_value([0.1] * (30 - worse) + [-0.9] * worse)
            rejected += chance * (p_value < 0.05)
    assert rejected == pytest.approx(0.19, abs=0.02)


# maj@k


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


def test_right_answers_are_one_candidate_and_wrong_ones_are_equal_as_text() -> None:
    problem = answered(
        ("7", True),
        ("7.0", True),
        (r"\dfrac{1}{2}", False),
        (r" \frac{1} {2} ", False),
        ("0.5", False),
        (None, False),
        (None, None),
    )
    assert count_votes(problem.grades) == Votes(right=2, wrong=(2, 1), without_answer=2)


def test_undecided_responses_vote_with_their_answer_and_are_not_right() -> None:
    same_text = answered(("7", True), ("7", None), ("8", False), ("8", None), ("9", None))
    assert count_votes(same_text.grades) == Votes(2, (2, 1), 0)
