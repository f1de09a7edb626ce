"""The grades of conversations: the environment's rewards, limits, and rewards by turn."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import replace

import pytest

from rlobj.base.errors import ConfigError
from rlobj.conversations.grading import limited, sums, turn_rewards, with_turns
from rlobj.data import Problem
from rlobj.objectives.statistics import SingleProcess
from rlobj.rewards import Graded, Reward, function_grader
from rlobj.samplers import Response
from rlobj.samplers.response import ToolUse, TurnRecord
from rlobj.settings.run_config import RunConfig
from rlobj.training.loop.metrics import rollout_metrics
from rlobj.training.rollouts.collector import Rollout, environment_weight

FAILED = ToolUse("python", "timeout", 2.0)
TURNS = (
    TurnRecord(2, "?1*2;", array("i", [7]), "2;", 0.25, uses=(ToolUse("calculator"), FAILED)),
    TurnRecord(1, "#2", array("i"), "", 0.5, True, end="done"),
)
SAMPLE = Response(
    [1],
    [2, 3, 4],
    [0.0] * 3,
    "#2",
    "stop",
    0,
    turns=TURNS,
)
PROBLEM = with_turns(Problem("1", "1*2=", "2", {"hint": "x"}), SAMPLE)


def test_the_reward_environment_adds_up_the_turns_and_knows_what_is_right():
    with Reward.build("environment").open() as grader:
        [grade] = grader.score(["#2"], [PROBLEM])
    assert (grade.reward, grade.correct) == (0.75, True)


@pytest.mark.parametrize(
    ("function", "reward"),
    [
        (lambda response, answer, **columns: len(columns["turns"]), 2),
        (lambda response, answer, hint, turns: len(turns), 2),
        (lambda response, answer, hint: float(response == "#2"), 1),
    ],
)
def test_a_reward_function_gets_the_turns_if_it_can_take_them(function, reward):
    with function_grader(function, "mine") as grader:
        [grade] = grader.score(["#2"], [PROBLEM])
    assert grade.reward == reward


@pytest.mark.parametrize(
    ("end", "at_limit", "reward", "correct"),
    [
        ("done", -1.0, 1.0, True),
        ("turns", "graded", 1.0, True),
        ("turns", "undecided", None, None),
        ("tokens", -1.0, -1.0, False),
        ("errors", 0.0, 0.0, False),
        ("broken", "graded", None, None),
    ],
)
def test_a_conversation_that_was_cut_is_graded_as_the_setting_says(end, at_limit, reward, correct):
    grade = limited(Graded(1.0, True, "equal", "2", (1.0, 0.0)), end, at_limit)
    assert grade.correct is correct
    assert grade.undecided if reward is None else grade.reward == reward
    assert (end == "done" or at_limit == "graded") or grade.reason != "equal"
    if reward is None:
        assert all(map(math.isnan, grade.rewards))


@pytest.mark.parametrize(
    ("reward", "weight", "expected"),
    [(0.75, 1.0, (0.25, 0.5)), (0.7, 0.2, (0.05, 0.65)), (1.0, 0.0, (0.0, 1.0))],
)
def test_the_rewards_of_turns_add_up_to_that_of_the_response(reward, weight, expected):
    assert turn_rewards(TURNS, reward, weight) == pytest.approx(expected)
    assert turn_rewards((), reward, weight) == ()


def test_the_weight_of_the_environment_is_that_among_several_rewards():
    several = [
        {"name": "correct", "kind": "math"},
        {"name": "told", "kind": "environment", "weight": 0.2},
    ]
    weights = [environment_weight(Reward.build(each)) for each in ("environment", "math", several)]
    assert weights == [1.0, 0.0, 0.2]


def test_calls_and_their_failures_are_counted():
    found = sums([SAMPLE, SAMPLE])
    expected = {"turns": 4, "calls": 4, "errors": 2, "timeouts": 2, "seconds": 4.0}
    expected |= {"malformed": 0, "exceptions": 0}
    assert {name: found[name] for name in expected} == expected
    assert (found["with_calls"], found["at_turns"]) == (2, 0)


def test_faults_of_a_tool_and_malformed_calls_are_counted_apart():
    kinds = ("malformed", "exception: KeyError: 'gone'", "exception", "error", "")
    turn = TurnRecord(2, "", array("i"), uses=tuple(ToolUse("spell", kind) for kind in kinds))
    found = sums([replace(SAMPLE, turns=[turn])])
    counts = {name: found[name] for name in ("calls", "errors", "malformed", "exceptions")}
    assert counts == {"calls": 5, "errors": 4, "malformed": 1, "exceptions": 2}


def test_an_environment_gives_the_rewards_unless_others_are_named():
    environment = {"target": "calculator"}
    assert RunConfig(environment=environment).rewards.kind == "environment"
    assert RunConfig(environment=environment, rewards="math").rewards.kind == "math"
    assert RunConfig(environment={"tools": ["python"]}).rewards.kind == "math"
    several = [{"name": "a", "kind": "math"}, {"name": "b", "kind": "exact"}]
    with pytest.raises(ConfigError, match="of several rewards, expected graded"):
        RunConfig(environment={**environment, "at_limit": 0.0}, rewards=several)


def test_a_conversation_that_was_cut_without_a_verdict_counts_as_wrong_in_training():
    turns = (replace(TURNS[0], size=1, end="turns"),)
    cut = Response([1], [2], [0.0], "?", "length", 0, turns=turns)
    grades = [Graded(1.0, True, "", None), Graded(0.0, None, "", None), Graded(0.0, None, "", None)]
    responses = [
        replace(sample, id=k, group=k, problem=PROBLEM, grade=grade)
        for k, (sample, grade) in enumerate(zip((SAMPLE, cut, SAMPLE), grades, strict=True))
    ]
    for known, expected in ((responses, 0.5), (responses[1:], None)):
        rollout = Rollout(known, [], 1, defaultdict(float), {})
        found = rollout_metrics(rollout, SingleProcess())
        assert found.get("reward/accuracy") == expected
        assert found["turns/at_turns"] == 1 / len(known)
