"""Several rewards: how they are written, graded and added."""

from __future__ import annotations

import math
import re

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.rewards import Exact, Math, Overlong, Several
from rlobj.settings.building import compose
from rlobj.settings.run_config import RunConfig, settings_of

LIST = [{"name": "right", "kind": "exact"}, {"name": "format", "kind": "math", "weight": 0.5}]


def errors(rewards):
    with pytest.raises(ConfigError) as caught:
        compose(None, [("--set", {"rewards": rewards})])
    return str(caught.value).splitlines()


def test_a_list_of_mappings_is_several_rewards():
    several = RunConfig(rewards=LIST).rewards
    assert isinstance(several, Several)
    assert (several.names, several.weights) == (("right", "format"), (1.0, 0.5))
    assert [type(each) for each in several.of] == [Exact, Math]
    assert RunConfig(rewards=[{"name": "right"}]).rewards.names == ("right",)
    assert RunConfig(rewards="exact").rewards.names is None


def test_several_rewards_are_read_back_from_their_dump():
    config = RunConfig(rewards={"kind": "several", "of": LIST, "overlong": {"cache": 0.2}})
    dump = settings_of(config)["rewards"]
    right = {"name": "right", "weight": 1.0, "kind": "exact", "overlong": None, "after": None}
    assert dump["of"][0] == right
    assert RunConfig(rewards=dump) == config


@pytest.mark.parametrize(
    "layers", [[{"overlong": {"cache": 0.2}}, LIST], [LIST, {"overlong": {"cache": 0.2}}]]
)
def test_a_list_of_rewards_keeps_the_length_penalty_of_a_layer_below_and_above(layers):
    rewards = compose(
        "grpo", [(f"layer {i}", {"rewards": each}) for i, each in enumerate(layers)]
    ).rewards
    assert rewards.overlong == Overlong(cache=0.2)
    assert rewards.names == ("right", "format", "overlong")
    assert rewards.weights == (1.0, 0.5, 1.0)


def test_all_errors_of_a_list_are_reported_at_once_with_the_nearest_names():
    found = errors(
        [{"nam": "a", "kind": "exact"}, {"name": "b", "kind": "exat"}, {"name": "c", "wight": 1}, 3]
    )
    assert len(found) == 4
    for start, text in (
        ("rewards.0.nam ", "Did you mean 'name'"),
        ("rewards.1 ", "Did you mean 'exact'"),
        ("rewards.2.wight", "Did you mean 'weight'"),
        ("rewards.3", "expected a Reward or a mapping with 'kind', got 3"),
    ):
        assert any(line.startswith(start) and text in line for line in found), (start, found)


def test_names_must_differ_and_the_length_penalty_belongs_to_all():
    found = errors(
        [
            {"name": "a"},
            {"name": "a"},
            {"name": "overlong"},
            {"name": "b", "overlong": {"cache": 0.2}},
        ]
    )
    starts = ["rewards.1.name", "rewards.2.name", "rewards.3.overlong"]
    assert [line.partition(" ")[0] for line in found] == starts
    assert "at least one" in errors([])[0]
    assert "rewards.0.name (from --set): is required" in errors([{"kind": "exact"}])[0]
    assert "one reward has no name" in errors({"name": "a"})[0]
    assert "match pattern" in errors([{"name": "a b"}])[0]
    assert "finite" in errors([{"name": "a", "weight": math.inf}])[0]


def test_a_rule_that_reads_an_unknown_reward_is_refused_before_the_run():
    rule = {"objective": {"keep": "reward('formal') > 0", "drop": "reward('right') < 0"}}
    with pytest.raises(
        ConfigError, match=r"objective\.keep.*no reward 'formal'\. Did you mean 'format'"
    ) as caught:
        compose("grpo", [("--set", {"rewards": LIST, **rule})])
    assert "right" not in str(caught.value).partition("Known")[0]
    with pytest.raises(ConfigError, match="is not a list with names"):
        compose("grpo", [("--set", rule)])


def grade(rewards, responses, answers, functions=None):
    problems = [Problem(id=str(i), prompt="?", answer=a) for i, a in enumerate(answers)]
    with RunConfig(rewards=rewards).rewards.open(functions) as grader:
        return grader.score(responses, problems)


def test_a_grade_is_the_weighted_sum_and_the_first_reward_decides_what_is_correct():
    functions = {"digits": lambda response, answer, **_: response.isdigit()}
    rewards = [
        {"name": "right", "kind": "exact"},
        {"name": "digits", "kind": "exact", "weight": 0.5},
    ]
    graded = grade(rewards, ["12", "13", "x"], ["12", "12", "x"], functions)
    assert [g.reward for g in graded] == [1.5, 0.5, 1.0]
    assert [g.rewards for g in graded] == [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)]
    assert [g.correct for g in graded] == [True, False, True]
    assert [g.answer for g in graded] == ["12", "13", "x"]


@pytest.mark.parametrize("weight", [0.5, 0])
def test_one_undecided_reward_makes_the_response_undecided(weight):
    functions = {"digits": lambda response, answer, **_: None if response == "x" else 1}
    rewards = [{"name": "right", "kind": "exact"}, {"name": "digits", "weight": weight}]
    graded = grade(rewards, ["12", "x"], ["12", "x"], functions)
    assert [g.correct for g in graded] == [True, None]
    assert math.isnan(graded[1].reward)
    assert graded[1].rewards[0] == 1.0
    assert graded[1].reason == "digits: the reward returned None or NaN"


def test_the_number_of_workers_is_not_part_of_what_grades_depend_on():
    both = [RunConfig(rewards=[{"name": "a", "workers": n}]).rewards.recorded() for n in (1, 3)]
    assert both[0] == both[1]
    assert not re.search("workers", str(both))
    assert "deadline" in both[0]["of"][0]


def test_all_rewards_are_closed_also_if_one_of_them_fails(monkeypatch):
    closed = []

    def fails(self, *_):
        closed.append(type(self))
        raise RuntimeError

    grader = RunConfig(rewards=LIST).rewards.open()
    for part in grader._graders:
        monkeypatch.setattr(type(part), "__exit__", fails)
    with pytest.raises(RuntimeError):
        grader.close()
    assert len(closed) == 2
