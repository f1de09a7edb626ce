"""pass@k, maj@k, standard errors, intervals and p-values, against enumeration and simulation."""

from __future__ import annotations

import itertools
import math
from statistics import mean, stdev

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlobj.data import Problem
from rlobj.evaluation.estimators import (
    RESAMPLES,
    Estimate,
    bootstrap_interval,
    pass_at_k,
    share_interval,
    sign_flip_test,
    standard_errors,
    wilson_interval,
)
from rlobj.evaluation.records import GradedProblem, ResponseRecord
from rlobj.evaluation.votes import Votes, count_votes
from rlobj.rewards import Graded


def answered(*answers: tuple[str | None, bool | None]) -> GradedProblem:
    """A problem with responses of these (answer, verdict)."""
    responses = tuple(ResponseRecord(i, 0, "", None, None) for i in range(len(answers)))
    grades = tuple(Graded(0.0, correct, "", answer) for answer, correct in answers)
    return GradedProblem(Problem("p", "?", "1"), responses, grades)


# pass@k


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (6, 5), (4, 4)])
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int, c: int) -> None:
    samples = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(samples, k))
        assert pass_at_k(n, c, k) == pytest.approx(mean(map(any, subsets)), abs=1e-15)


def test_pass_at_k_is_exact_for_thousands_of_samples() -> None:
    assert pass_at_k(4096, 1, 4096) == 1.0
    assert pass_at_k(4096, 1, 1) == 1 / 4096
    assert pass_at_k(4096, 0, 2048) == 0.0


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_is_refused_where_no_subset_exists(k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} needs"):
        pass_at_k(4, 2, k)


# standard errors


def test_standard_errors_by_hand() -> None:
    errors = standard_errors([1, 4, 2], [4, 4, 4])
    inner = 0.25 * 0.75 / 3 + 0 + 0.5 * 0.5 / 3
    assert errors.sampling == pytest.approx(math.sqrt(inner) / 3)
    assert errors.problems == pytest.approx(stdev([0.25, 1, 0.5]) / math.sqrt(3))
    assert tuple(errors) == (errors.sampling, errors.problems)


def test_the_sampling_error_is_the_spread_of_repeated_evaluations_of_the_same_problems() -> None:
    generator = torch.Generator().manual_seed(0)
    chances = torch.rand(30, dtype=torch.float64, generator=generator)
    runs, told = [], []
    for _ in range(400):
        right = torch.binomial(torch.full_like(chances, 8), chances, generator=generator)
        runs.append(float(right.mean() / 8))
        told.append(standard_errors([int(c) for c in right], [8] * 30).sampling ** 2)
    assert math.sqrt(mean(told)) == pytest.approx(stdev(runs), rel=0.1)


@pytest.mark.parametrize("counts", [([], []), ([1], [1])])
def test_standard_errors_are_unknown_where_there_is_too_little(counts: tuple) -> None:
    assert all(math.isnan(error) for error in standard_errors(*counts))


# intervals


def test_wilson_by_the_textbook() -> None:
    low, high, method = wilson_interval(81, 263)  # Newcombe 1998, table I, method 3
    assert (round(low, 4), round(high, 4), method) == (0.2553, 0.3662, "Wilson")
    assert wilson_interval(0, 29)[:2] == (0.0, pytest.approx(0.1170, abs=5e-5))


@pytest.mark.parametrize("values", [[1.0] * 30, [0.0] * 30, [1.0, 0.0, 1.0], [0.25] * 8])
def test_single_proportions_and_equal_shares_get_wilson(values: list[float]) -> None:
    assert share_interval(values) == wilson_interval(sum(values), len(values))
    assert share_interval(values).high > share_interval(values).low


def test_an_interval_of_nothing_is_unknown() -> None:
    assert math.isnan(share_interval([]).low)
    assert math.isnan(bootstrap_interval([0.5, 0.5]).low)
    assert math.isnan(bootstrap_interval([0.5, 0.2], []).low)
    assert math.isnan(Estimate(()).mean)


def test_the_bootstrap_is_seeded_and_mirrors() -> None:
    values = [0.0, 0.0, 0.1, 0.9, 1.0, 0.3, 0.0]
    once = bootstrap_interval(values, seed=3)
    assert once == bootstrap_interval(values, seed=3)
    assert once != bootstrap_interval(values, seed=4)
    other = bootstrap_interval([-value for value in values], seed=3)
    assert (other.low, other.high) == (
        pytest.approx(-once.high, abs=1e-9),
        pytest.approx(-once.low, abs=1e-9),
    )


def test_the_interval_of_skewed_shares_is_longer_on_the_open_side() -> None:
    values = [0.0] * 24 + [0.1, 0.2, 0.3, 0.5, 0.9, 1.0]
    low, high, _ = share_interval(values)
    assert high - mean(values) > 1.3 * (mean(values) - low)


def test_groups_count_alike_however_many_problems_they_have() -> None:
    small, large = [0.0, 1.0, 0.5, 0.5] * 5, [0.5, 0.4, 0.6, 0.5] * 100
    low, high, _ = bootstrap_interval(small, large)
    assert low < 0.5 < high
    spread = stdev(small) / math.sqrt(len(small)) / 2  # the large group adds next to nothing
    assert (high - low) / 2 / 1.96 == pytest.approx(spread, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "b", "least"),
    [(0.5, 0.4, 0.93), (1.0, 1.0, 0.93), (2.0, 0.2, 0.92), (0.15, 1.5, 0.90)],
    ids=["bimodal", "uniform", "easy", "hard"],
)
def test_intervals_for_thirty_problems_cover(a: float, b: float, least: float) -> None:
    """400 evaluations of 30 problems of Beta(a, b) difficulty with 32 samples each."""
    generator = torch.Generator().manual_seed(0)
    concentration = torch.tensor([a, b], dtype=torch.float64).expand(400, 30, 2).contiguous()
    chances = torch._sample_dirichlet(concentration, generator=generator)[..., 0]
    right = torch.binomial(torch.full_like(chances, 32), chances, generator=generator)
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
def test_the_sign_flip_test_is_the_enumeration_of_all_signs(differences: list[int]) -> None:
    test = sign_flip_test(differences)
    assert test.exact
    assert test.p_value == pytest.approx(enumerated(differences), abs=1e-12)


def test_with_one_sample_per_problem_it_is_mcnemars_exact_test() -> None:
    better, worse = 12, 3  # two-sided binomial test of 3 out of 15
    expected = 2 * sum(math.comb(15, i) for i in range(worse + 1)) / 2**15
    differences = [1] * better + [-1] * worse + [0] * 485
    assert sign_flip_test(differences) == (pytest.approx(expected), True)


def test_sums_that_never_meet_are_sampled() -> None:
    differences = [3**i for i in range(20)]  # 2^20 sums, no two alike
    test = sign_flip_test(differences, seed=1)
    assert not test.exact
    assert test == sign_flip_test(differences, seed=1)
    assert 1 / (RESAMPLES + 1) <= test.p_value < 0.001  # exactly 2/2^20: never 0
    mixed = [(-1) ** i * (10**6 + 3**i) for i in range(16)]
    assert sign_flip_test(mixed, seed=1).p_value == pytest.approx(enumerated(mixed), abs=0.02)


def test_p_values_of_equal_models_are_small_as_rarely_as_they_say() -> None:
    generator = torch.Generator().manual_seed(0)
    small = 0
    for _ in range(300):
        chances = torch.rand(30, dtype=torch.float64, generator=generator)
        two = [
            torch.binomial(torch.full_like(chances, 4), chances, generator=generator) for _ in "ab"
        ]
        small += sign_flip_test([int(d) for d in two[0] - two[1]]).p_value <= 0.1
    assert 0.04 <= small / 300 <= 0.13


# maj@k


def by_enumeration(votes: Votes, k: int) -> float:
    ballots: list[int | None] = [None] * votes.without_answer
    for place, size in enumerate((votes.right, *votes.wrong, *votes.undecided)):
        ballots += [place] * size
    undecided = range(1 + len(votes.wrong), 1 + len(votes.wrong) + len(votes.undecided))
    right = lost = total = 0.0
    for subset in itertools.combinations(ballots, k):
        total += 1
        counts = [subset.count(place) for place in range(undecided.stop)]
        most = max(counts)
        if most:
            winners = [place for place, count in enumerate(counts) if count == most]
            right += (0 in winners) / len(winners)
            lost += sum(place in undecided for place in winners) / len(winners)
    return right / (total - lost) if total - lost > 1e-9 else math.nan


@given(
    st.integers(0, 4),
    st.lists(st.integers(1, 3), max_size=3),
    st.lists(st.integers(1, 2), max_size=1),
    st.integers(0, 2),
)
def test_majority_is_its_expectation_over_all_subsets(
    right: int, wrong: list[int], undecided: list[int], without_answer: int
) -> None:
    votes = Votes(right, tuple(wrong), tuple(undecided), without_answer)
    for k in range(1, votes.responses + 1):
        assert votes.majority_at(k) == pytest.approx(by_enumeration(votes, k), nan_ok=True)


def test_majority_of_one_is_the_share_of_right_responses() -> None:
    assert Votes(3, (2, 1), (), 2).majority_at(1) == pytest.approx(3 / 8)


def test_majority_of_hundreds_of_samples_converges_to_the_larger_answer() -> None:
    votes = Votes(300, (212,), (), 0)
    assert votes.majority_at(512) == pytest.approx(1.0, abs=1e-12)
    assert 0.58 < votes.majority_at(1) < votes.majority_at(64) < votes.majority_at(256) <= 1.0
    with pytest.raises(ValueError, match="maj@513"):
        votes.majority_at(513)


def test_answers_are_grouped_by_text_then_by_the_judge() -> None:
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
    told = answered(("8", False), ("eight", None))
    assert count_votes(told, lambda a, b: True) == Votes(0, (2,), (), 0)
    assert count_votes(told, lambda a, b: None) == Votes(0, (1,), (1,), 0)


def test_a_problem_where_an_undecided_answer_always_wins_has_no_majority() -> None:
    assert math.isnan(Votes(1, (), (3,), 0).majority_at(4))
    assert Votes(1, (), (1,), 0).majority_at(2) == 1.0  # a tie, and one of its two ends is unknown
