"""Controllers: when gates open, bounds of levels, the state as JSON."""

from __future__ import annotations

import json
import math

import pytest
import torch
from strategies import NAN, tokens

from rlobj import ConfigError, Objective, TokenBatch, parse
from rlobj.objectives.controllers import AdaptiveGate, Gate
from rlobj.objectives.divisors import SequenceMean


def rollout(entropies: list[float], lengths: list[int] | None = None) -> TokenBatch:
    lengths = [len(entropies)] if lengths is None else lengths
    logprobs = [-1.0] * len(entropies)
    return tokens(lengths, logprobs, old_entropy=entropies, rewards=[1.0] * len(lengths))


def held(controller: Gate | AdaptiveGate) -> Objective:
    return Objective(controllers={"W": controller}, reweight="W")  # type: ignore[arg-type]


def test_a_gate_is_open_only_below_its_target() -> None:
    objective = held(Gate(target=0.3, on=1.1, off=0.9))
    state = objective.init()
    assert state == {"W": {"value": 0.9}}
    for entropy, value in [(0.29, 1.1), (0.3, 0.9), (0.31, 0.9), (0.0, 1.1)]:
        state = objective.observe([rollout([entropy])], state)
        assert state == {"W": {"value": value, "entropy": entropy}}


def test_the_mean_entropy_uses_the_divisor_of_the_loss_over_decided_responses() -> None:
    """Entropies 0, 0, 0 and 1: 1/4 by token, 1/2 by response."""
    gate = held(Gate(target=0.3, on=1.1))
    table = rollout([0, 0, 0, 1, NAN], [3, 1, 1]).replace(rewards=[1.0, 0.0, NAN])
    assert gate.observe([table])["W"] == {"value": 1.1, "entropy": 0.25}
    assert gate.observe(table.split(3)) == gate.observe([table])
    by_response = gate.replace(divisor=SequenceMean()).observe([table])["W"]
    assert by_response == {"value": 1.0, "entropy": 0.5}


def test_an_adaptive_level_moves_by_its_step_within_its_bounds() -> None:
    gate = AdaptiveGate(target=0.3, start=1.1, step=0.25, low=1.0, high=1.5)
    objective = held(gate)
    state = objective.init()
    levels, values = [], []
    for entropy in [0.1, 0.1, 0.1, 0.3, 0.5, 0.5, 0.5]:
        state = objective.observe([rollout([entropy])], state)
        levels.append(state["W"]["level"])
        values.append(state["W"]["value"])
    assert levels == pytest.approx([1.35, 1.5, 1.5, 1.5, 1.25, 1.0, 1.0])
    assert values == pytest.approx([1.35, 1.5, 1.5, 1, 1, 1, 1])


UNDEFINED = parse("old_entropy.mean(within=reward > 2)")
LEVEL = AdaptiveGate(target=9, start=1.1, low=1, high=1.5)


@pytest.mark.parametrize("controller", [Gate(target=9, on=1.1), LEVEL])
def test_a_rollout_without_the_number_does_not_change_the_state(controller) -> None:
    objective = held(controller)
    state = objective.observe([rollout([0.5])])
    undecided = rollout([NAN]).replace(rewards=[NAN])
    for tables in ([rollout([], lengths=[0])], [undecided], []):
        assert objective.observe(tables, state) == state
    objective = held(controller.model_copy(update={"of": UNDEFINED}))
    assert objective.observe([rollout([0.5])]) == objective.init()


def test_the_state_is_json_and_observe_does_not_modify_its_arguments() -> None:
    objective = held(AdaptiveGate(target=0.3, start=1.1, low=1.0, high=1.5))
    before = {**objective.init(), "update": 7}
    kept = json.dumps(before)
    after = objective.observe([rollout([0.1])], before)
    assert json.dumps(before) == kept
    assert json.loads(json.dumps(after)) == after
    assert after["update"] == 7
    assert all(math.isfinite(x) for x in after["W"].values())


def test_the_weight_of_a_plan_is_the_controllers_value() -> None:
    objective = held(Gate(target=0.3, on=1.5))
    table = rollout([0.1, 0.1]).replace(advantages=[1.0])
    opened = objective.observe([table])
    assert objective.plan([table], opened).weights[0].tolist() == [0.75, 0.75]
    assert objective.plan([table]).weights[0].tolist() == [0.5, 0.5]
    assert objective.plan([table], opened).metrics["controller/W"] == 1.5


def four_tokens() -> TokenBatch:
    table = tokens([3, 1, 1], [-1.0] * 5, old_entropy=[0, 0, 0, 1, NAN], rewards=[1.0, 0.0, NAN])
    return table.replace(groups=[0, 0, 0])


def test_a_gate_can_read_one_reward_and_a_column_of_the_user() -> None:
    gate = {"kind": "gate", "of": "stage.max() + reward('b').mean()", "target": 3.0, "on": 2.0}
    objective = Objective(columns=("stage",), controllers={"W": gate}, reweight="W")  # type: ignore[arg-type]
    assert objective.needs.observe == {"stage"}
    assert objective.needs.rewards == {"b": "W"}
    table = four_tokens().replace(
        rewards=torch.tensor([[1.0, 0.0], [0.0, 1.0], [NAN, NAN]]),
        reward_names=("a", "b"),
        columns={"stage": torch.tensor([0.0, 1, 2, 2, 9])},  # 9: undecided
    )
    assert objective.observe([table])["W"] == {"value": 2.0, "measured": 2.5}


def gate(**settings) -> dict:
    return {"kind": "gate", "target": 1, "on": 2, **settings}


@pytest.mark.parametrize(
    ("name", "controller", "message"),
    [
        ("W", gate(of="reward"), r"use reward\.mean\(\)"),
        ("W", gate(of="prob * 2"), r"use \(prob \* 2\)\.mean\(\)"),
        ("W", gate(of="W"), "'W' reads a controller"),
        ("w", gate(), "must begin with a capital"),
        (
            "W",
            {"kind": "adaptive_gate", "target": 0.3, "start": 2.0, "low": 1.0, "high": 1.5},
            "expected low <= start <= high",
        ),
    ],
)
def test_a_wrong_controller_is_refused(name, controller, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Objective(controllers={name: controller}, reweight="W")
