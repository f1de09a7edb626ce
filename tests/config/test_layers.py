"""Layers of a run's configuration: which wins, and when the embedded profile is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.config.layers import EMBEDDED_LAYER, file_layer, layers_of, origins
from rlobj.config.presets import load_preset
from rlobj.config.run_config import build_config, compose
from rlobj.models.embedded import EMBEDDED_PROFILE, PROFILES

MODEL: dict[str, Any] = {"model": {"name": "some/model"}, "data": {"source": "problems.jsonl"}}


def names(layers: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [name for name, _ in layers]


def test_the_embedded_profile_replaces_the_papers_scale_and_keeps_its_objective() -> None:
    config, embedded = compose("stapo", [])
    paper = load_preset("stapo")
    assert embedded
    assert config.sampling.max_tokens == EMBEDDED_PROFILE["sampling"]["max_tokens"]
    assert config.sampling.max_tokens != paper.config["sampling"]["max_tokens"]
    assert config.resolved_objective() == paper.objective


def test_a_model_keeps_the_papers_scale() -> None:
    config, embedded = compose("stapo", [("options", MODEL)])
    assert not embedded
    assert config.sampling.max_tokens == load_preset("stapo").config["sampling"]["max_tokens"]


def test_overrides_win_over_profile_and_preset_and_later_ones_over_earlier() -> None:
    first = {"training": {"steps": 3, "learning_rate": 0.5}}
    config, _ = compose("stapo", [("file", first), ("--set", {"training": {"steps": 4}})])
    assert (config.training.steps, config.training.learning_rate) == (4, 0.5)


def test_an_override_may_name_the_preset_and_an_explicit_one_wins() -> None:
    override = ("file", {"preset": "dapo", **MODEL})
    assert compose(None, [override])[0].preset == "dapo"
    assert compose(None, [override])[0].sampling.dynamic is not None
    assert compose("grpo", [override])[0].preset == "grpo"
    assert compose(None, [override, ("--set", {"preset": "gspo"})])[0].preset == "gspo"


@pytest.mark.parametrize("task", PROFILES)
def test_a_built_in_task_brings_its_own_profile(task: str) -> None:
    config, embedded = compose("grpo", [("--data", {"data": {"source": task}})])
    assert embedded
    assert config.sampling.max_tokens == PROFILES[task]["sampling"]["max_tokens"]


def test_other_problems_without_a_model_ask_for_one() -> None:
    with pytest.raises(ConfigError, match=r"'mine\.jsonl' needs a model: --model"):
        layers_of("grpo", [("--data", {"data": {"source": "mine.jsonl"}})])


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


def test_a_preset_that_names_a_preset_is_told_of_base(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("preset: stapo\n")
    with pytest.raises(ConfigError, match="base: stapo"):
        layers_of(str(file), [])


def test_mistakes_of_all_layers_are_told_at_once_with_their_layer() -> None:
    wrong = [("my.yaml", {"training": {"stepz": 3}}), ("--set", {"sampling": {"group_size": 0}})]
    with pytest.raises(ConfigError) as caught:
        compose("stapo", wrong)
    assert "training.stepz (from my.yaml): unknown key. Did you mean 'steps'?" in str(caught.value)
    assert "sampling.group_size (from --set)" in str(caught.value)


def test_origins_follow_the_merge() -> None:
    below = {"objective": {"surrogate": {"kind": "clip", "low": 0.2}}, "seed": 1}
    above = {"objective": {"surrogate": {"kind": "cispo", "max": 5.0}}}
    assert origins([("a", below), ("b", above)]) == {
        "seed": "a",
        "objective.surrogate.kind": "b",
        "objective.surrogate.max": "b",
    }


def test_layers_are_named_from_the_lowest_up() -> None:
    layers = layers_of("stapo", [("--set", {"seed": 3})])
    assert names(layers) == ["preset stapo", EMBEDDED_LAYER, "--set"]
