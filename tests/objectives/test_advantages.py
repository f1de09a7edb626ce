"""Advantages: formulas by hand, undecided and equal rewards, independence of the order."""

from __future__ import annotations

import itertools
import math
import statistics
from typing import Any

import pytest
import torch
from strategies import NAN, tokens

from rlobj import BatchError, Objective
from rlobj.objectives.advantages import (
    AccurateGroupCentered,
    Advantage,
    BatchCentered,
    BatchWhitened,
    Decoupled,
    ExpectedPassAtK,
    GroupCentered,
    GroupCenteredBatchWhitened,
    GroupNormalized,
    LeaveOneOut,
    LengthWeighted,
    MaximumLikelihood,
    PassAtK,
    QuantileBaseline,
    TurnReturn,
)
from rlobj.objectives.rewards import differ, merged_rewards

FAMILY = [
    AccurateGroupCentered(),
    BatchCentered(),
    BatchWhitened(),
    Decoupled(),
    Decoupled(each=LeaveOneOut(), then=GroupNormalized(scale="batch")),
    GroupCentered(),
    GroupCenteredBatchWhitened(),
    GroupNormalized(),
    GroupNormalized(scale="batch"),
    GroupNormalized(scale="none"),
    LeaveOneOut(),
    LengthWeighted(),
    MaximumLikelihood(),
    ExpectedPassAtK(k=1),
    PassAtK(),
    QuantileBaseline(),
    TurnReturn(),
]
RELATIVE = [each for each in FAMILY if type(each).relative]
by_name = pytest.mark.parametrize("estimate", FAMILY, ids=str)


def run(estimate: Advantage, rewards: Any, groups: Any = None, lengths: Any = None) -> list[float]:
    """A; an advantage that refuses rewards below 0 gets their sizes."""
    groups = [0] * len(rewards) if groups is None else groups
    lengths = [1] * len(rewards) if lengths is None else lengths
    column = torch.tensor(rewards, dtype=torch.float64)
    column = column.abs() if estimate.nonnegative else column
    return estimate(column, torch.tensor(groups), torch.tensor(lengths)).tolist()


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        # rewards 1, 0, 2 of one group with 1, 2, 3 tokens: mean 1, standard deviation 1
        (GroupNormalized(epsilon=0), [0, -1, 1]),
        (GroupNormalized(scale="none"), [0, -1, 1]),
        (BatchCentered(), [0, -1, 1]),
        (QuantileBaseline(epsilon=0), [0, -1, 1]),  # F(0) = 1/3 < 0.4 <= F(1)
        (QuantileBaseline(epsilon=0, K=1 / 3), [1, 0, 2]),
        (QuantileBaseline(epsilon=0, K=1.0), [-1, -2, 0]),
        (PassAtK(epsilon=0), [0, 0, 1]),
        (ExpectedPassAtK(k=2), [0, 0, 0]),  # each pair has a correct response
    ],
    ids=str,
)
def test_advantages_of_three_responses_equal_values_by_hand(estimate, expected):
    assert run(estimate, [1, 0, 2], lengths=[1, 2, 3]) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("estimate", RELATIVE, ids=str)
@pytest.mark.parametrize("reward", [0.1, 1 / 3, -0.7, 1e-12, 0.0])
def test_equal_rewards_give_advantages_of_exactly_zero(estimate: Advantage, reward: float) -> None:
    """In floats 0.1 + 0.1 + 0.1 is not 0.3: the difference must not become an advantage."""
    rewards = [reward] * 7 + [1.0, 0.0]
    assert run(estimate, rewards, groups=[0] * 7 + [1, 1])[:7] == [0.0] * 7


@pytest.mark.parametrize("lengths", [[3, 3, 3, 0], [1, 2, 3, 0]])
def test_whitened_equal_rewards_are_exactly_zero(lengths: list[int]) -> None:
    rewards = [0.1, 0.1, 0.1, 1.0]  # the other reward is that of a response without tokens
    assert run(BatchWhitened(), rewards, lengths=lengths)[:3] == [0.0] * 3
    assert run(BatchWhitened(), [0.1] * 4, lengths=lengths) == [0.0] * 4


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("correct", range(7))
def test_expected_pass_at_k_is_the_mean_over_all_sets_of_k_responses(k: int, correct: int) -> None:
    rewards = [1.0] * correct + [0.0] * (6 - correct)
    sets = list(itertools.combinations(range(6), k))
    solved = [float(any(rewards[i] for i in chosen)) for chosen in sets]
    rate = statistics.fmean(solved or [0.0])
    scale = math.sqrt(rate * (1 - rate)) + 1e-6
    for i, found in enumerate(run(ExpectedPassAtK(k=k), rewards)):
        own = [x - rate for x, chosen in zip(solved, sets, strict=True) if i in chosen]
        assert found == pytest.approx(statistics.fmean(own or [0.0]) / scale, abs=1e-9)


@pytest.mark.parametrize("estimate", RELATIVE, ids=str)
def test_groups_with_fewer_than_two_decided_responses_have_advantage_zero(estimate):
    rewards, groups = [NAN, 1.0, NAN, 1.0, 0.0], [0, 0, 0, 1, 1]
    actual = run(estimate, rewards, groups)
    assert actual[:3] == [0.0] * 3
    assert actual[3] > 0


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (GroupNormalized(epsilon=0.25), 3 / 1.25),
        (GroupCentered(), 3),
        (LeaveOneOut(), 3),
        (AccurateGroupCentered(), 9),  # the other two of three responses have equal rewards
        (MaximumLikelihood(epsilon=0.5), 3 / 3.5),
        (LengthWeighted(), 3),
        (QuantileBaseline(epsilon=0.5), 0),  # the quantile of one reward is this reward
        (PassAtK(), 0),
        (ExpectedPassAtK(k=1), 0),
    ],
    ids=str,
)
def test_a_group_of_one_response_has_mean_0_and_standard_deviation_1(estimate, expected):
    assert run(estimate, [3.0, 1.0, 1.0], groups=[5, 6, 6])[0] == expected


def test_an_advantage_compares_a_group_unless_equal_groups_have_one() -> None:
    compared = [each for each in FAMILY if each.group_relative]
    assert [each for each in FAMILY if each not in compared] == [BatchCentered(), BatchWhitened()]
    assert not Decoupled(each=BatchWhitened(), then=None).group_relative


MAXRL = Objective(advantage=MaximumLikelihood())


@pytest.mark.parametrize("rewards", [[1, -1, -1, -1], [0.0, NAN, -0.25, 1.0]])
def test_a_reward_below_0_is_refused_where_it_would_turn_the_sign(rewards: list[float]) -> None:
    batch = tokens([1] * 4, [-1.0] * 4, rewards=rewards, groups=[7] * 4)
    row = next(i for i, reward in enumerate(rewards) if reward < 0)
    message = f"column 'rewards' is {rewards[row]:g} at response {row}; expected 0"
    with pytest.raises(BatchError, match=message):
        MAXRL.plan([batch])
    with pytest.raises(BatchError, match=message):
        MaximumLikelihood()(torch.tensor(rewards), torch.tensor([7] * 4), torch.tensor([1] * 4))


def test_a_sum_of_rewards_below_0_is_refused() -> None:
    """If it is below 0 by more than rounding."""
    rewards = torch.tensor([[1.0, 0.0], [1.0, -1.5]])
    batch = tokens([1, 1], [-1.0] * 2, rewards=rewards, reward_names=("right", "overlong"))
    with pytest.raises(BatchError, match=r"is -0\.5 at response 1; expected 0"):
        MAXRL.plan([batch])
    assert MAXRL.plan([batch.replace(reward_weights=(1.0, 0.5))]).kept == 2
    batch = tokens([1, 1], [-1.0] * 2, rewards=[1.0, 0.0], ref_logprobs=[-2.0, -2.0])
    with pytest.raises(BatchError, match=r"is -0\.5 at response 1"):
        MAXRL.replace(reward_kl=0.5).plan([batch])
    batch = tokens([1] * 3, [-1.0] * 3, rewards=[0.3 - 0.1 - 0.2, 0.0, 1.0])
    assert MAXRL.plan([batch]).advantages[0].tolist() == pytest.approx([-1, -1, 2], rel=1e-5)


@by_name
def test_advantages_of_no_responses_and_of_undecided_responses(estimate: Advantage) -> None:
    assert run(estimate, []) == []
    assert run(estimate, [NAN, NAN]) == [0.0, 0.0]
    none = torch.tensor([NAN, NAN], requires_grad=True)
    actual = estimate(none, torch.tensor([0, 0]), torch.tensor([1, 1]))
    assert actual.dtype == torch.float64
    assert not actual.requires_grad


def decoupled(
    rewards: Any, groups: Any = None, lengths: Any = None, weights: Any = None, **settings: Any
) -> list[float]:
    column = torch.tensor(rewards, dtype=torch.float64)
    groups = torch.tensor([0] * len(rewards) if groups is None else groups)
    lengths = torch.tensor([1] * len(rewards) if lengths is None else lengths)
    return Decoupled(**settings)(column, groups, lengths, weights).tolist()


def test_each_reward_is_normalized_before_the_weighted_sum() -> None:
    """The paper's point: rewards (0, 1) and (0, 2) of two responses keep different advantages."""
    settings, root = {"each": GroupNormalized(epsilon=0), "then": None}, math.sqrt(0.5)
    for rewards, weights, expected in (
        ([[0, 0], [1, 0]], None, [-root, root]),
        ([[0, 0], [1, 1]], None, [-2 * root, 2 * root]),
        ([[0, 1], [1, 0]], None, [0, 0]),
        ([[0, 1], [100, 0]], [2.0, 0.5], [-1.5 * root, 1.5 * root]),
        ([0.0, 1.0], None, [-root, root]),
    ):
        assert decoupled(rewards, weights=weights, **settings) == pytest.approx(expected)


@pytest.mark.parametrize("then", [None, BatchWhitened(), GroupNormalized(scale="batch")], ids=str)
def test_rounding_gives_no_decoupled_advantage(then: Advantage | None) -> None:
    """The first group has no signal, in the second the advantages of the two rewards cancel."""
    rewards = [[0.1, 0.3]] * 3 + [[0.1, 0.9], [0.7, 0.3], [0.2, 0.8]]
    groups = [0, 0, 0, 1, 1, 1]
    assert decoupled(rewards, groups, then=then) == [0.0] * 6
    more = [*rewards, [1, 0.7], [0.1, 0.2], [0.3, 0.3]]
    actual = decoupled(more, [*groups, 2, 2, 2], then=then)
    assert actual[:6] == [0.0] * 6
    assert all(actual[6:])


@by_name
def test_rewards_that_differ_by_rounding_are_equal(estimate: Advantage) -> None:
    summed = 0.1 + 0.2
    assert summed != 0.3
    for rewards in ([0.3, summed, 0.3, summed], [summed, 0.3, 1.0, 0.0]):
        first, second, *_ = run(estimate, rewards)
        assert first == second
        assert first == 0 or 1.0 in rewards


@pytest.mark.parametrize("rewards", [[0.2, 0.0, 0.5, -0.7], [0.1, 0.2, 0.3], [0.7, 0.8, 0.9]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("estimate", [GroupCentered(), GroupNormalized(), LengthWeighted()])
def test_a_reward_that_is_the_mean_but_for_rounding_has_an_advantage_of_exactly_zero(
    estimate: Advantage, dtype: torch.dtype, rewards: list[float]
) -> None:
    given = torch.tensor(rewards, dtype=dtype)
    groups, lengths = torch.zeros(len(rewards)).long(), torch.full((len(rewards),), 3)
    assert (estimate(given, groups, lengths) == 0).tolist() == [
        math.isclose(reward, statistics.fmean(rewards), abs_tol=1e-9) for reward in rewards
    ]


def test_rewards_that_differ_by_more_than_rounding_are_not_equal() -> None:
    assert run(GroupCentered(), [1.0, 1.0 + 1e-8])[1] == pytest.approx(5e-9)
    many = torch.linspace(0, 1, 3001, dtype=torch.float64)
    assert torch.equal(merged_rewards(many), many)
    assert differ(torch.tensor([NAN, 1.0, 2.0]))
    assert not differ(torch.tensor([NAN, 1.0]))
    assert not differ(torch.tensor([]))


UNIT = float(torch.tensor(0.3).nextafter(torch.tensor(1.0)))
"""The float32 after 0.3."""


@pytest.mark.parametrize(
    ("rewards", "dtype", "advantage"),
    [
        ([(0.6, 0.1), (0.7, 0.0)], torch.float32, "group_normalized"),
        ([(0.1, 0.2), (0.3, 0.0)], torch.float64, "group_normalized"),
        ([0.3, UNIT], torch.float32, "group_normalized"),
        ([0.3, UNIT], torch.float32, "decoupled"),
    ],
)
def test_rewards_and_sums_that_differ_by_rounding_are_equal(rewards, dtype, advantage):
    logprobs: Any = torch.tensor([-1.0, -2.0], dtype=dtype)
    batch = tokens([1, 1], logprobs, rewards=torch.tensor(rewards, dtype=dtype))
    [table] = Objective(advantage=advantage).with_advantages([batch])
    assert table.advantages.tolist() == [0, 0]
