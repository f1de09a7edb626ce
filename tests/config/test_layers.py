"""Layers of a run's configuration: which wins, and when the embedded profile is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.config.layers import (
    DEFAULT_TASK,
    EMBEDDED_LAYER,
    PROFILES,
    Layer,
    file_layer,
    layers_of,
    origins,
)
from rlobj.config.presets import load_preset
from rlobj.config.run_config import DynamicSampling, build_config, compose
from rlobj.rewards.kinds import Exact

CALCULATOR = {"data": {"source": "calculator"}}
MODEL: dict[str, Any] = {"model": {"name": "some/model"}, "data": {"source": "problems.jsonl"}}


def names(layers: list[Layer]) -> list[str]:
    return [name for name, _ in layers]


def test_embedded_profile_replaces_the_scale_of_the_paper_and_keeps_its_objective() -> None:
    config = compose("stapo")
    paper = load_preset("stapo")
    assert config.sampling.max_tokens == PROFILES[DEFAULT_TASK]["sampling"]["max_tokens"]
    assert config.sampling.max_tokens != paper.config["sampling"]["max_tokens"]
    assert config.resolved_objective() == paper.objective


def test_the_embedded_profile_draws_missing_prompts_instead_of_whole_batches() -> None:
    preset = "fipo"
    dynamic = compose(preset).sampling.dynamic
    assert dynamic is not None
    assert dynamic == DynamicSampling(max_batches=dynamic.max_batches)
    [profile] = [layer for name, layer in layers_of(preset, []) if name == EMBEDDED_LAYER]
    assert profile["sampling"]["dynamic"]["whole_batches"] is False
    mine = ("--set", {"sampling": {"dynamic": {"whole_batches": True}}})
    assert compose(preset, [mine]).sampling.dynamic == dynamic.model_copy(
        update={"whole_batches": True}
    )


def test_a_named_model_keeps_the_scale_of_the_paper() -> None:
    assert EMBEDDED_LAYER not in names(layers_of("stapo", [("options", MODEL)]))
    config = compose("stapo", [("options", MODEL)])
    assert config.sampling.max_tokens == load_preset("stapo").config["sampling"]["max_tokens"]


def test_the_last_override_wins_over_profile_and_preset() -> None:
    first = {"training": {"steps": 3, "learning_rate": 0.5}}
    config = compose("stapo", [("file", first), ("--set", {"training": {"steps": 4}})])
    assert (config.training.steps, config.training.learning_rate) == (4, 0.5)


def test_an_override_may_name_the_preset_and_an_explicit_one_wins() -> None:
    override = ("file", {"preset": "dapo", **MODEL})
    assert compose(None, [override]).preset == "dapo"
    assert compose(None, [override]).sampling.dynamic is not None
    assert compose("grpo", [override]).preset == "grpo"
    assert compose(None, [override, ("--set", {"preset": "gspo"})]).preset == "gspo"


@pytest.mark.parametrize("base", [{}, MODEL])
def test_a_named_environment_grades_unless_a_reward_is_named(base: dict[str, Any]) -> None:
    named = [("here", base), ("--environment", {"environment": {"target": "calculator"}})]
    rewards = compose("dapo", named).rewards
    assert (rewards.kind, rewards.overlong) == ("environment", compose("dapo").rewards.overlong)
    exact = ("--reward", {"rewards": {"kind": "exact"}})
    assert compose("dapo", [*named, exact]).rewards.kind == "exact"


def test_another_model_on_a_calculator_task_has_its_environment_or_tools() -> None:
    own = {"model": {"name": "some/model"}, "data": {"source": "calculator"}}
    config, profile = (
        compose("grpo", [("options", own)]),
        compose("grpo", [("options", CALCULATOR)]),
    )
    assert config.environment == profile.environment
    assert (config.rewards.kind, config.sampling.stop) == ("environment", (";",))
    tools = compose("grpo", [("options", own), ("--tools", {"environment": {"tools": ["python"]}})])
    assert tools.environment.target is None
    assert (tools.rewards, tools.sampling.stop) == (Exact(after="#"), ())


def test_another_model_on_a_scratchpad_is_graded_by_its_answer() -> None:
    own = {"model": {"name": "some/model"}, "data": {"source": "scratchpad"}}
    assert compose("grpo", [("options", own)]).rewards == Exact(after="#")
    math = ("--reward", {"rewards": {"kind": "math"}})
    assert compose("grpo", [("options", own), math]).rewards.kind == "math"


def test_a_configuration_file_may_name_preset_and_model(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "preset: stapo\nmodel: {name: some/model}\ndata: {source: x.jsonl}\n"
        "training: {steps: 7, learning_rate: 1e-3}\n"
    )
    layers = layers_of(None, [file_layer(file)])
    assert names(layers) == ["preset stapo", str(file)]
    config = build_config(layers)
    assert (config.preset, config.training.steps) == ("stapo", 7)
    assert (config.training.learning_rate, config.sampling.group_size) == (1e-3, 8)


def test_error_names_base_if_a_preset_names_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: stapo\n")
    with pytest.raises(ConfigError, match="base: stapo"):
        layers_of(str(file), [])


def test_errors_of_all_layers_are_reported_together_with_their_layer() -> None:
    wrong = [("my.yaml", {"training": {"stepz": 3}}), ("--set", {"sampling": {"group_size": 0}})]
    with pytest.raises(ConfigError) as caught:
        compose("stapo", wrong)
    assert "training.stepz (from my.yaml): unknown key. Did you mean 'steps'?" in str(caught.value)
    assert "sampling.group_size (from --set)" in str(caught.value)


def test_origins_name_the_last_layer_and_leave_out_replaced_settings() -> None:
    below = {"objective": {"surrogate": {"kind": "clip", "low": 0.2}}, "seed": 1}
    above = {"objective": {"surrogate": {"kind": "cispo", "max": 5.0}}}
    assert origins([("a", below), ("b", above)]) == {
        "seed": "a",
        "objective.surrogate.kind": "b",
        "objective.surrogate.max": "b",
    }


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ({"data": {"system": "\ud83d"}}, "data.system"),
        ({"sampling": {"stop": ["a", "\udc00"]}}, "sampling.stop"),
        ({"model": {"chat_template_kwargs": {"a": {"b": "\ud83d"}}}}, "kwargs.a.b"),
        ({"model": {"chat_template_kwargs": {"\ud83d": 1}}}, r"kwargs.\\ud83d"),
    ],
)
def test_half_a_surrogate_pair_in_a_setting_is_refused_with_its_name(setting, path) -> None:
    with pytest.raises(ConfigError, match=rf"{path} \(from here\): half a surrogate pair"):
        compose("stapo", [("model", MODEL), ("here", setting)])
