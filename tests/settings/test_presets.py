"""Presets: recipes, bases, and errors that say where; `test_golden` has the numbers of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlobj import ConfigError, Objective, RunConfig, Surrogate, load_preset, prob
from rlobj.base.yaml import load_yaml
from rlobj.objectives.divisors import FixedLength
from rlobj.objectives.surrogates import Clip
from rlobj.rewards import Overlong
from rlobj.settings.building import compose
from rlobj.settings.presets import difference, merge, preset_names

DAPO = Objective(surrogate=Clip(low=0.2, high=0.28))
JUSTRL = DAPO.replace(surrogate=Clip(low=0.2, high=0.28, dual=10))
PINNED = {
    "agent-lightning",
    "ar",
    "ar-lopti",
    "bpco",
    "bpo",
    "clip-cov",
    "cppo",
    "dppo-kl",
    "flash-reinforce",
    "lopti",
    "m2po",
    "opsm",
    "sao",
}
"""These keep the full divisor."""


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_short_and_cites_its_paper(name: str) -> None:
    preset = load_preset(name)
    assert len(preset.text.partition("\nsources:")[0].splitlines()) <= 30
    assert "arXiv:" in preset.paper or name == "flash-reinforce"  # a report without a number
    assert 10 < len(preset.summary) < 90
    assert preset.config["objective"]["divisor"]["over"] == ("all" if name in PINNED else "kept")
    assert preset.text.startswith("# ")


RELEASED = {  # prompts, responses, tokens, prompt tokens, updates, learning rate, weight decay
    "ar": (64, 8, 4096, 400, 2, 1e-6, 0.01),
    "ar-lopti": (64, 8, 4096, 400, 2, 1e-6, 0.01),
    "clip-cov": (256, 8, 8192, 2048, 8, 5e-7, 0.0),
    "dapo": (512, 16, 20480, 2048, 16, 1e-6, 0.1),
    "dr-grpo": (128, 8, 3000, 1024, 8, 1e-6, 0.0),
    "justrl": (256, 8, 15360, 1024, 4, 1e-6, 0.1),
    "kl-cov": (256, 8, 8192, 2048, 8, 1e-6, 0.0),
    "lopti": (64, 8, 4096, 400, 2, 1e-6, 0.01),
    "lp-reg": (256, 8, 8192, 2048, 1, 1e-6, 0.0),
    "stapo": (256, 8, 15360, 1024, 4, 1e-6, 0.1),
    "stapo-v4": (256, 8, 15360, 1024, 4, 1e-6, 0.1),
    "stare": (64, 8, 3072, 1024, 1, 1e-6, 0.01),
    "stare-c2": (64, 8, 3072, 1024, 1, 1e-6, 0.01),
}


@pytest.mark.parametrize("name", sorted(RELEASED))
def test_a_recipe_has_the_numbers_of_the_released_script(name: str) -> None:
    config = load_preset(name).config
    sampling, training = config["sampling"], config["training"]
    assert RELEASED[name] == (
        *(sampling[key] for key in ("prompts_per_step", "group_size", "max_tokens")),
        config["data"]["max_prompt_tokens"],
        *(training[key] for key in ("updates_per_step", "learning_rate", "weight_decay")),
    )
    dynamic = {"20-entropy", "clip-cov", "dapo", "kl-cov", "stare", "stare-c2"}
    assert ("dynamic" in sampling) == (name in dynamic)


DYNAMIC = {  # prompts of a batch, batches
    "20-entropy": (1536, 10),
    "ce-gppo": (256, 1),
    "clip-cov": (256, 10),
    "dapo": (1536, 10),
    "fipo": (2048, 10),
    "kl-cov": (256, 10),
    "stare": (192, 10),
    "stare-c2": (192, 10),
}


@pytest.mark.parametrize("name", preset_names())
def test_a_recipe_draws_the_whole_batches_of_the_released_trainer(name: str) -> None:
    """Archer and ASPO draw one batch of 64 prompts for 64 groups, and train on what they have."""
    model = {"model": {"name": "some/model"}, "data": {"source": "problems.jsonl"}}
    sampling = compose(name, [("options", model)]).sampling
    dynamic = sampling.dynamic
    assert (dynamic is not None) == (name in {*DYNAMIC, "archer", "aspo"})
    if name in DYNAMIC:
        assert dynamic is not None
        prompts = sampling.prompts_per_step * dynamic.oversampling
        assert (prompts, dynamic.max_batches) == DYNAMIC[name]
        assert dynamic.whole_batches
        assert dynamic.allow_fewer == (name == "ce-gppo")
    elif dynamic is not None:
        assert (dynamic.whole_batches, dynamic.max_batches) == (False, 1)


SCALES = {"dapo": (1.0, -1.0), "fipo": (1.0, -1.0), "20-entropy": (1.0, 0.0)}
"""The rewards of a right and of a wrong response in the release; its penalty at the limit is 1."""


def test_the_advantages_of_long_responses_are_those_of_the_rewards_in_the_release() -> None:
    """Two right and two wrong responses, of which the second is at the limit."""
    shaped = {name for name in preset_names() if "overlong" in str(load_preset(name).config)}
    assert shaped == SCALES.keys()
    for name, (right, wrong) in SCALES.items():
        preset = load_preset(name)
        shaping = preset.config["rewards"]["overlong"]
        assert "penalty" in shaping  # pinned, with a source
        limit = preset.config["sampling"]["max_tokens"]
        lengths, groups = torch.tensor([100, limit, 100, limit]), torch.zeros(4, dtype=torch.int)
        ours = Overlong(**shaping).shape(torch.tensor([1.0, 1.0, 0.0, 0.0]), lengths, limit)
        released = torch.tensor([right, right - 1, wrong, wrong - 1])
        expected = (released - released.mean()) / released.std()
        found = preset.objective.advantage(ours, groups, lengths)
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-5)


def test_bases_are_listed_nearest_first_and_their_settings_merge() -> None:
    preset = load_preset("stare-c2")
    assert preset.bases == ("stare", "dapo-loss")
    dynamic = {"by": "accuracy", "max_batches": 10, "whole_batches": True, "oversampling": 3}
    sizes = {"temperature": 1.0, "prompts_per_step": 64, "group_size": 8, "max_tokens": 3072}
    assert preset.config["sampling"] == {**sizes, "dynamic": dynamic}
    assert not {"sources", "base"} & preset.config.keys()
    archer = load_preset("archer").config["training"]
    assert (archer["passes"], archer["updates_per_step"]) == (3, 2)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    (tmp_path / "near").mkdir()

    def write(text: str, name: str = "mine.yaml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_file_can_build_on_a_preset_by_name(write: Any) -> None:
    path = write("base: stapo\nobjective: {drop: prob < 0.5}\n", "dapo-loss.yaml")
    preset = load_preset(path)
    assert preset.name == "dapo-loss"
    assert preset.bases == ("stapo", "justrl", "dapo-loss")
    assert preset.objective == JUSTRL.drop(prob < 0.5)  # a child's rule replaces the base's


def test_a_file_can_build_on_a_file_in_the_same_folder(write: Any) -> None:
    write("objective: {surrogate: {high: 0.5}}\nbase: dapo\n", "near/base.yaml")
    write("base: ./base.yaml\nobjective: {surrogate: {dual: 3}}\n", "near/child.yaml")
    path = write("base: near/child.yaml\n", "child.yaml")  # the same stem is another file
    preset = load_preset(str(path))
    assert preset.objective == DAPO.replace(surrogate=Clip(low=0.2, high=0.5, dual=3))
    assert preset.bases == ("child", "base", "dapo", "dapo-loss")


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ({"kind": "clip", "low": 1}, {"high": 2}, {"kind": "clip", "low": 1, "high": 2}),
        ({"kind": "clip", "low": 1}, {"kind": "clip", "high": 2}, {"kind": "clip", "high": 2}),
        ({"kind": "clip", "low": 1}, {"kind": "cispo"}, {"kind": "cispo"}),
        ({"kind": "clip", "low": 1}, "unclipped", "unclipped"),
        ("group_normalized", {"scale": "none"}, {"kind": "group_normalized", "scale": "none"}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": None}}, {"a": {"b": None, "c": 2}}),
        ([1, 2], [3], [3]),
        (None, {"a": 1}, {"a": 1}),
    ],
)
def test_merge_replaces_values_and_kinds(below: Any, above: Any, expected: Any) -> None:
    assert merge(below, above) == expected


def test_null_removes_what_a_base_sets(write: Any) -> None:
    path = write("base: stapo\nobjective: {drop: null}\nsampling: null\n")
    assert load_preset(path).objective == JUSTRL


def test_difference_lists_settings_that_differ() -> None:
    found = difference(load_preset("dapo-loss").config, load_preset("stapo").config)
    assert ("objective.drop", None, str(load_preset("stapo").objective.drop_rule)) in found
    assert difference({"a": {"kind": "x"}}, {"a": {"kind": "y"}}) == [
        ("a", {"kind": "x"}, {"kind": "y"})
    ]
    assert difference({"a": 1}, {"a": 1}) == []


def test_lengths_are_resolved_with_the_max_tokens_of_the_preset(write: Any) -> None:
    path = write("base: dr-grpo\nsampling: {max_tokens: 77}\n")
    assert load_preset(path).objective.divisor == FixedLength(length=77)


@pytest.mark.parametrize("name", ["stapoo", "STAPO", "stap"])
def test_error_for_an_unknown_preset_names_the_nearest(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unknown preset '{name}'. Did you mean 'stapo'"):
        load_preset(name)
    with pytest.raises(ConfigError, match="no preset file at"):
        load_preset(tmp_path / f"{name}.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("base: dapo-los", "Did you mean 'dapo-loss'"),
        ("base: ./mine.yaml", "leads back to itself"),
        ("base: ./other.yaml", "leads back to itself"),
        ("base: dr-grpo\nsampling: {max_tokens: 0}", "length.*greater than or equal to 1"),
        ("base: dr-grpo\nsampling: {max_tokens: -5}", "length.*greater than or equal to 1"),
    ],
)
def test_an_unknown_base_a_cycle_and_a_wrong_length_are_refused(write, text, message):
    path = write(text)
    write("base: ./near/../mine.yaml\n", "other.yaml")
    write("", "near/empty.yaml")
    with pytest.raises(ConfigError, match=message):
        _ = load_preset(path).objective


def test_all_errors_of_an_objective_are_reported_together(write: Any) -> None:
    path = write(
        """
objective:
  surogate: clip
  advantage: {kind: group_normalised}
  divisor: {kind: token_mean, ovr: all}
  surrogate: {kind: clip, low: -1, dual: 0.5}
  drop: probb < 0.5
  penalties: [{kind: kl, estimator: k9}]
"""
    )
    with pytest.raises(ConfigError) as caught:
        _ = load_preset(path).objective
    message = str(caught.value)
    for expected in (
        str(path),
        "objective.surogate: unknown key. Did you mean 'surrogate'?",
        "objective.advantage: kind 'group_normalised' is unknown. Did you mean 'group_normalized'?",
        "objective.divisor.ovr: unknown key. Did you mean 'over'?",
        "objective.surrogate.low: expected a number >= 0",
        "objective.surrogate.dual: expected a number > 1",
        "objective.drop: unknown name 'probb'. Did you mean 'prob'?",
        "objective.penalties.0.estimator: Input should be 'k1', 'abs', 'k2' or 'k3'",
    ):
        assert expected in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("objective: {drop: a, drop: b}", "the key 'drop' is given twice"),
        ("paper: a\npaper: b", "the key 'paper' is given twice"),
        ("objective: [", "is not valid YAML"),
        ("objective: clip", "objective must be a mapping"),
        ("- a", "must hold a mapping, got list"),
        ("objective: {a, 1}", "a key must be text, got 1; put quotes around a text with a comma"),
        ("a: \0", "is not valid YAML"),
    ],
)
def test_error_in_a_yaml_file_names_the_file(write: Any, text: str, message: str) -> None:
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_preset(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_targets_of_a_file_are_beside_it_or_else_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("mine.py", "here/mine.py", "here/only.py", "there.py"):
        (tmp_path / name).touch()
    (tmp_path / "below.yaml").write_text(
        "rewards: [{name: a, kind: custom, target: 'mine.py:a', weight: 1}]\n"
        "environment: {tools: [python, './there.py:t', 'package.mine:t', '/mine.py:t']}\n"
        "columns: {x: only.py:x}\ndata: {template: 'mine.py:a {prompt}'}\n"
    )
    rule = "(prob < 0.1) & custom('mine.py:Rare', of=custom(\"no.py:Such\"))"
    text = f"base: ../below.yaml\nobjective:\n  drop: {rule}\n"
    (tmp_path / "here" / "top.yaml").write_text(text)
    config: Any = load_preset("./top.yaml").config
    assert config["rewards"][0]["target"] == f"{tmp_path}/mine.py:a"
    tools = ["python", f"{tmp_path}/there.py:t", "package.mine:t", "/mine.py:t"]
    assert config["environment"]["tools"] == tools
    assert config["columns"]["x"] == "only.py:x"
    assert config["data"]["template"] == "mine.py:a {prompt}"
    assert f"custom('{tmp_path}/here/mine.py:Rare', of=" in config["objective"]["drop"]
    monkeypatch.chdir(tmp_path.parent)
    config = load_preset(f"{tmp_path.name}/here/top.yaml").config
    for name in ("mine.py:Rare", "no.py:Such"):
        assert f"{tmp_path.name}/here/{name}" in config["objective"]["drop"]


# From Python to a file.


@pytest.mark.parametrize("name", preset_names())
def test_the_objective_of_a_preset_is_written_to_a_file_and_read_again(name, tmp_path) -> None:
    objective = load_preset(name).objective
    written = load_preset(objective.to_preset(tmp_path / "mine.yaml"))
    assert written.objective == objective
    assert written.summary == "an objective of my own"
    assert RunConfig(**written.config, data={"source": "addition"}).objective == objective


class Doubled(Surrogate):
    """S = 2·A."""

    def __call__(self, terms: Any) -> Any:
        return 2 * terms.advantages


def test_classes_of_ones_own_are_written_by_their_names(tmp_path: Path) -> None:
    objective = Objective(surrogate=Doubled(), let={"w": "prob * 2"}, reweight="w + 1")
    file = objective.to_preset(str(tmp_path / "mine.yaml"), "doubled: # ]")
    assert load_preset(file).objective == objective
    assert load_preset(file).summary == "doubled: # ]"
    assert Objective().to_preset(file) == file  # over the other one
    assert load_preset(file).objective == Objective()
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom rlobj import CustomRule\n"
        "@dataclass(frozen=True)\nclass Mine(CustomRule):\n    limit: float = 1.0\n"
    )
    by_path = Objective(drop=f"custom('{tmp_path}/own.py:Mine', limit=2) & (prob < 0.5)")
    assert load_preset(by_path.to_preset(file)).objective == by_path


def test_files_of_code_are_named_as_the_written_file_sees_them(tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    Path("other folder").mkdir()
    Path("seen ü.py").write_text(
        "from rlobj import Surrogate\nclass Mine(Surrogate):\n    def __call__(self, terms):\n"
        "        return terms.advantages\n"
    )
    objective = Objective(surrogate={"kind": "custom", "target": "seen ü.py:Mine"})
    assert "target: seen ü.py:Mine" in objective.to_preset("mine.yaml").read_text()
    file = objective.to_preset("other folder/mine.yaml").resolve()
    assert "../seen ü.py:Mine" in file.read_text()
    monkeypatch.chdir("/")
    assert load_preset(file).objective == objective


def test_classes_that_no_other_process_can_import_are_refused(tmp_path: Path) -> None:
    class Local(Doubled):
        pass

    notebook = type("Cell", (Doubled,), {"__module__": "__main__"})
    for surrogate, name in {Local(): r"<locals>\.Local", notebook(): "__main__:Cell"}.items():
        with pytest.raises(ConfigError, match=f"{name}: expected a class that another process can"):
            Objective(surrogate=surrogate).to_preset(tmp_path / "mine.yaml")
    assert not [*tmp_path.iterdir()]


def test_a_preset_prints_as_its_settings() -> None:
    text = repr(load_preset("stapo"))
    assert text.startswith("# stapo  STAPO, Liu et al. 2026")
    assert load_yaml(text) == load_preset("stapo").config
