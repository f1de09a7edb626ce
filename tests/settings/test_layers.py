"""Layers of a run's configuration: which wins, and when the embedded profile is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.base.yaml import dump_yaml
from rlobj.objectives.divisors import FixedLength
from rlobj.rewards.kinds import Exact
from rlobj.settings.building import build_config, compose
from rlobj.settings.layers import EMBEDDED_LAYER, Layer, layers_of, parse_setting
from rlobj.settings.presets import load_preset
from rlobj.settings.profiles import DEFAULT_TASK, MOST_WARMUP, PROFILES
from rlobj.settings.run_config import RunConfig
from rlobj.settings.sampling import DynamicSampling
from rlobj.settings.scores import ValueConfig

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


VALUE = {
    "objective": {"advantage": {"kind": "gae"}, "values": [{"kind": "clipped_squared"}]},
    "scores": {"critic": {"value": True, "learning_rate": 1e-5, "value_warmup": 50}},
    "sampling": {"prompts_per_step": 1024, "group_size": 1},
}


def test_the_embedded_profile_fits_a_value_and_leaves_one_response_a_prompt(tmp_path) -> None:
    preset = tmp_path / "mine.yaml"
    preset.write_text(dump_yaml({"base": "grpo", **VALUE}))
    config = compose(str(preset))
    assert config.critic == ValueConfig(value=True, learning_rate=3e-3, value_warmup=MOST_WARMUP)
    assert (config.sampling.prompts_per_step, config.sampling.group_size) == (256, 1)
    typed = {"scores": {"critic": {"learning_rate": 1e-3}}, "sampling": {"prompts_per_step": 64}}
    config = compose(str(preset), [("--set", typed)])
    assert config.critic is not None
    assert (config.critic.learning_rate, config.sampling.prompts_per_step) == (1e-3, 64)
    groups = compose(str(preset), [("--set", {"sampling": {"group_size": 4}})])
    assert groups.sampling.prompts_per_step == 32
    paper = compose(str(preset), [("options", MODEL)])
    assert paper.scores["critic"] == ValueConfig(**VALUE["scores"]["critic"])
    assert paper.sampling.prompts_per_step == 1024


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


def test_error_names_base_if_a_preset_names_a_preset(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: stapo\n")
    with pytest.raises(ConfigError, match="base: stapo"):
        layers_of(str(file), [])


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


def test_a_reward_of_a_preset_file_of_ones_own_is_kept_by_the_embedded_policy(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.yaml").write_text(
        "base: grpo\nrewards: {kind: custom, target: 'mine.py:score'}\nsampling: {max_tokens: 99}\n"
    )
    with without_imports():
        config = build_config(layers_of(str(tmp_path / "mine.yaml"), []))
    assert config.rewards.recorded()["kind"] == "custom"
    assert config.sampling.max_tokens != 99  # which is scale


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("Question: {prompt}", "Question: {prompt}"),
        (r"\boxed{} {prompt}", r"\boxed{} {prompt}"),
        (r'"\\boxed{} {prompt}\n"', "\\boxed{} {prompt}\n"),
        ("null", None),
    ],
)
def test_a_template_is_text_and_keeps_its_backslashes(typed: str, read: str | None) -> None:
    assert parse_setting(f"data.template={typed}") == {"data": {"template": read}}


def test_the_longest_response_of_a_divisor_is_that_of_a_rollout() -> None:
    objective = {"divisor": {"kind": "fixed_length", "length": "max_tokens"}}
    for sampling, length in (({"max_tokens": 9}, 9), ({"max_tokens": 9, "rollout_tokens": 30}, 30)):
        config = RunConfig(objective=objective, sampling=sampling)  # type: ignore[arg-type]
        assert config.resolved_objective().divisor == FixedLength(length=length)
