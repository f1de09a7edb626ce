"""Turns: a level of the rule language, and advantages per turn."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from strategies import NAN, awkward_batch, tokens

from rlobj import BatchError, ConfigError, Objective, TokenBatch, parse
from rlobj.objectives.advantages import GroupCentered, GroupNormalized, LeaveOneOut, TurnReturn
from rlobj.objectives.frame import Frame
from rlobj.objectives.statistics import SingleProcess

READ = ("logprobs", "advantages", "rewards", "turn", "turn_reward")
BATCH = tokens(
    [3, 0, 3, 1, 2],
    [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0, -9.0],
    groups=[0, 0, 0, 1, 1],
    ids=[0, 1, 2, 3, 4],
    rewards=[3.0, 9.0, 6.0, 5.0, NAN],
    turn=[0, 0, 2, 0, 1, 1, 0, 0, 1],
    turn_reward=[1.0, 1, 2, 4, 2, 2, 5, NAN, NAN],
)
"""Turns of responses 0, 2, 3 and 4; response 1 has no token, and response 4 is undecided."""


def numbers(text: str, batch: TokenBatch = BATCH) -> list[float]:
    """The number, or 1 and 0 of the rule, on each token of a decided response."""
    table = batch if batch.advantages is not None else batch.replace(advantages=batch.logprobs)
    frame = Frame([table], dict.fromkeys(READ, "the test"), SingleProcess())
    expression = parse(text)
    values = frame.rule(expression) if expression.is_rule else frame.number(expression)  # type: ignore[arg-type]
    frame.check()
    return values[batch.decided].double().tolist()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("turn", [0, 0, 2, 0, 1, 1, 0]),
        ("turn_position", [0, 1, 0, 0, 0, 1, 0]),
        ("turn_reward", [1, 1, 2, 4, 2, 2, 5]),
        ("surprisal.sum(by='group_turn')", [7, 7, 3, 7, 11, 11, 7]),
        ("turn_reward.mean(by='group_turn')", [2.5, 2.5, 2, 2.5, 2, 2, 5]),
        ("turn_reward.mean()", [2.8] * 7),
        ("reward.mean(by='group_turn')", [4.5, 4.5, 3, 4.5, 6, 6, 5]),  # of those that get there
        ("(turn >= 0).count(by='group')", [4, 4, 4, 4, 4, 4, 1]),
        ("turn_reward.max(by='response', within=surprisal < 3)", [1, 1, 1, 0, 0, 0, 0]),
        ("turn_reward.rank(by='group_turn')", [0, 0, 0.5, 1, 0.5, 0.5, 0.5]),
        ("turn_reward.suffix_sum(decay=0.5)", [2, 2, 2, 5, 2, 2, 5]),  # the turn without tokens
        ("turn_reward.prefix_sum()", [1, 1, 3, 4, 6, 6, 5]),
        ("surprisal.prefix_sum(by='turn')", [1, 3, 3, 4, 5, 11, 7]),
        ("surprisal.suffix_sum(by='turn')", [3, 2, 3, 4, 11, 6, 7]),
        ("turn_reward.top(0.4, of='turn')", [0, 0, 0, 1, 0, 0, 1]),
        ("turn_reward.top(0.5, by='group', of='turn')", [0, 0, 1, 1, 1, 1, 1]),  # 2 ties with 2
        ("(surprisal > 5).any(by='turn')", [0, 0, 0, 0, 1, 1, 1]),
        ("(prob + turn).bottom_to_mean(0.1, by='group_turn')", [0, 1, 0, 1, 0, 0, 1]),
    ],
)
def test_numbers_and_rules_of_turns_equal_values_by_hand(text: str, expected: list[float]) -> None:
    assert numbers(text) == pytest.approx(expected)
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prob.top(0.5, of='turn')", "Rank prob.mean.by='turn'"),
        ("turn.top(0.5, of='response')", "'turn' has one value per turn. Rank turn.mean"),
        ("reward.top(0.5, by='turn', of='response')", "a response lies in several of by="),
        ("turn_reward.suffix_sum(by='turn')", "'turn_reward' has one value per turn; leave out by"),
        ("prob.suffix_sum(by='group')", "suffix_sum..: by='group': expected one of response, tu"),
    ],
)
def test_a_wrong_use_of_turns_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("turn", "more", "message"),
    [
        ([0, 1, 0, 0], {}, "'turn' decreases .* response 0, token 2"),
        ([0, 1, 1, -1], {}, "'turn' .* is negative at response 1, token 0"),
        ([0, 0.5, 1, 0], {}, "column 'turn' must hold integers, got 0.5"),
        ([0, 0], {}, r"column 'turn' has shape \[2\], expected \[4\]"),
        (
            [0, 1, 1, 0],
            {"turn_reward": [1.0, 2, 3, 4]},
            "'turn_reward' changes within a turn at response 0, token 2",
        ),
    ],
)
def test_wrong_turns_are_refused_with_their_row(turn: Any, more: Any, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        TokenBatch(lengths=[3, 1], groups=[0, 0], logprobs=[-1.0] * 4, turn=turn, **more)  # type: ignore


def test_without_columns_of_turns_a_response_is_one_turn_with_its_reward() -> None:
    batch = tokens([2, 1], [-1.0] * 3, rewards=[1.0, 0.0])
    assert numbers("turn + turn_position + 10 * turn_reward", batch) == [10, 11, 0]
    two = batch.replace(turn=[0, 1, 0])
    with pytest.raises(BatchError, match="needs the column 'turn_reward'"):
        numbers("turn_reward", two)
    with pytest.raises(BatchError, match=r"TurnReturn\(|turn_return.*'turn_reward'|'turn_reward'"):
        Objective(advantage=TurnReturn()).plan([two])


def test_turns_of_padded_columns_are_those_of_the_trained_positions() -> None:
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 0]])
    turn = torch.tensor([[0, 9, 1, 1], [9, 0, 9, 9]])
    columns = {"turn": turn, "turn_reward": turn / 2, "rewards": [1, 0], "groups": [0, 0]}
    batch = TokenBatch.from_padded(mask, -1.0 * mask, **columns)
    assert batch.turn_numbers.tolist() == [0, 1, 1, 0]
    assert numbers("turn_reward", batch) == [0, 0.5, 0.5, 0]


# Advantages.

NATURAL = "(turn_reward - turn_reward.mean(by='group_turn')).suffix_sum()"
OWN_MEAN = "turn_reward.suffix_sum() - turn_reward.suffix_sum().mean(by='group_turn')"


def conversations(rewards: list[list[float]], groups: list[int] | None = None) -> TokenBatch:
    """A table with one token in each turn, by the rewards of the turns."""
    flat = [reward for each in rewards for reward in each]
    return tokens(
        [len(each) for each in rewards],
        [-1.0] * len(flat),
        groups=groups or [0] * len(rewards),
        ids=list(range(len(rewards))),
        rewards=[sum(each) for each in rewards],
        turn=[turn for each in rewards for turn in range(len(each))],
        turn_reward=flat,
    )


def credit(batch: TokenBatch, advantage: Any = None, **settings: Any) -> list[float]:
    """The advantage of each token as the surrogate reads it."""
    objective = Objective(advantage=advantage or TurnReturn(), **settings)
    return objective.plan([batch]).advantages[0].tolist()


def test_four_conversations_of_equal_worth_have_no_advantage_but_by_the_natural_baseline() -> None:
    """Two stop at once with 1; two call a tool for 0.5 and then answer for 0.5: the page's case."""
    batch = conversations([[1.0], [1.0], [0.5, 0.5], [0.5, 0.5]])
    assert credit(batch) == [0.0] * 6
    assert credit(batch, shape=NATURAL) == [0.25, 0.25, -0.25, 0, -0.25, 0]


@pytest.mark.parametrize(
    ("rewards", "settings", "expected"),
    [
        ([[0, 1], [0, 0], [1, 2]], {}, [-0.5, 0, -2, -1.5, 2.5, 1.5]),
        ([[0, 1], [0, 0], [1, 2]], {"discount": 0.5}, [-0.5, 0, -1.25, -1.5, 1.75, 1.5]),
        ([[0, 1], [0, 0]], {"discount": 0}, [0, 1, 0, -1]),
        ([[0, 1], [0], [1]], {}, [0.5, 0.5, -1, 0.5]),  # turn 1: 1 − (0 + 1)/2
        ([[0, 1], [0]], {"each": GroupCentered()}, [0.5, 0.5, -0.5]),
        ([[0.5, 2]], {}, [2.5, 2]),  # a group of one response
    ],
)
def test_advantages_of_turns_equal_values_by_hand(rewards, settings, expected) -> None:
    assert credit(conversations(rewards), TurnReturn(**settings)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("outer", "place"), [("decoupled", "each"), ("decoupled", "then"), ("turn_return", "each")]
)
@pytest.mark.parametrize("kind", ["turn_return", "decoupled"])
def test_an_advantage_of_turns_or_of_several_rewards_is_no_part_of_another(outer, place, kind):
    message = f"advantage.{place}: '{kind}' cannot be a part"
    for inner in (kind, {"kind": kind}):
        with pytest.raises(ConfigError, match=message):
            Objective(advantage={"kind": outer, place: inner})


@pytest.mark.parametrize("each", [LeaveOneOut(), GroupNormalized(), GroupNormalized(scale="batch")])
def test_turn_return_of_responses_of_one_turn_is_the_advantage_of_responses(each: Any) -> None:
    batch = awkward_batch(3).replace(turn=None, turn_reward=None)
    assert credit(batch, TurnReturn(each=each)) == credit(batch, each)


def test_equal_returns_of_a_turn_have_advantages_of_exactly_zero() -> None:
    batch = conversations([[0.1, 0.2], [0.2, 0.1], [0.3 - 1e-16, 0.0], [0.1 + 0.2]])
    floats = {"turn_reward": batch.turn_reward.float(), "rewards": batch.rewards.float()}  # type: ignore
    for table in (batch, batch.replace(**floats)):
        assert torch.tensor(credit(table))[batch.turn_numbers == 0].tolist() == [0.0] * 4


def two_decisions(p: float, q: float) -> list[tuple[float, list[float], list[float]]]:
    """Outcomes: probability, rewards of the turns, ∇log π of each turn by its own logit.

    At turn 0 the policy calls a tool with probability p, for 0.5, or stops, for 0.7. At turn 1 it
    is right with probability q, for 1, or wrong, for −0.2.
    """
    return [
        (1 - p, [0.7], [-p]),
        (p * q, [0.5, 1.0], [1 - p, 1 - q]),
        (p * (1 - q), [0.5, -0.2], [1 - p, -q]),
    ]


def expected_gradient(outcomes: Any, responses: int, credited: Any) -> list[float]:
    """E[Σ_t A_t ∇log π] of one response by the logits of its decisions, over all groups."""
    total = [0.0, 0.0]
    for group in itertools.product(outcomes, repeat=responses):
        values = iter(credited(conversations([rewards for _, rewards, _ in group])))
        chance = math.prod(probability for probability, _, _ in group)
        for _, _, scores in group:
            for turn, score in enumerate(scores):
                total[turn] += chance * next(values) * score / responses
    return total


def test_leave_one_out_has_the_true_gradient_and_means_with_the_own_turn_have_not() -> None:
    """All groups of three responses, weighed with their probabilities."""
    p, q = 0.3, 0.6
    outcomes = two_decisions(p, q)
    value = 0.5 + q * 1.0 + (1 - q) * -0.2  # of a call
    true = [p * (1 - p) * (value - 0.7), p * q * (1 - q) * 1.2]
    assert expected_gradient(outcomes, 3, credit) == pytest.approx(true, abs=1e-12)
    # A mean over the m responses with the turn takes 1/m away: late turns lose more.
    found = expected_gradient(outcomes, 3, lambda batch: credit(batch, shape=OWN_MEAN))
    assert found == pytest.approx([true[0] * 2 / 3, true[1] * (2 * p * (1 - p) / 2 + p**2 * 2 / 3)])
    # The natural baseline subtracts the mean of turn 1 from calls alone: it trains against them.
    found = expected_gradient(outcomes, 3, lambda batch: credit(batch, shape=NATURAL))
    assert found[0] < 0 < true[0]


@pytest.mark.parametrize("settings", [{}, {"advantage": LeaveOneOut(), "shape": OWN_MEAN}])
def test_a_group_of_equal_rewards_is_kept_if_its_turns_have_advantages(settings) -> None:
    batch = conversations([[1.0, 0.0], [0.0, 1.0]])
    assert credit(batch, LeaveOneOut()) == [0.0] * 4
    assert any(credit(batch, **settings))
    assert Objective(**{"advantage": TurnReturn(), **settings}).scores_alone


def test_what_reads_turns_says_so() -> None:
    needs = Objective(advantage=TurnReturn()).needs.plan
    assert {"rewards", "turn", "turn_reward"} <= needs
    by_turn = Objective(keep=parse("prob.top(0.5, by='turn')"))  # type: ignore[arg-type]
    assert "turn" in by_turn.needs.plan
    assert "turn" not in Objective().needs.plan
    assert "turn" in Objective(advantage=TurnReturn()).reader("turn_reward")  # type: ignore[operator]
    for kind in ("turn_return", "decoupled"):
        with pytest.raises(ConfigError, match=f"reward_kl needs one reward, not '{kind}'"):
            Objective(advantage=kind, reward_kl=0.1)  # type: ignore[arg-type]
