"""What may change when a run is resumed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.settings.layers import nested
from rlobj.settings.presets import merge
from rlobj.settings.resuming import (
    RECORDED_SETTINGS,
    RESUMABLE_SETTINGS,
    changed,
    code_digest,
    refuse_changes,
)
from rlobj.settings.run_config import RunConfig, settings_of


def test_every_resumable_setting_exists() -> None:
    for name in (*RESUMABLE_SETTINGS, *RECORDED_SETTINGS):
        scores = {"teacher": {"server": "http://127.0.0.1:8000"}, "critic": {"value": True}}
        one, two = {"kind": "custom", "target": "m:f"}, {"kind": "reward_model", "model": "m"}
        value: Any = settings_of(RunConfig(scores=scores, model={"lora": {}}))  # type: ignore[arg-type]
        of = [settings_of(RunConfig(rewards=each))["rewards"] for each in (one, two)]  # type: ignore[arg-type]
        any_score = {key: one for score in value["scores"].values() for key, one in score.items()}
        value = {**value, "rewards": of[0] | of[1], "scores": {"*": any_score}}
        for part in name.split("."):
            value = value[part]


def test_all_changes_that_would_change_results_are_named_at_once() -> None:
    refuse_changes("runs/a", ["training.steps", "--set checkpoint.every", "sampling.vllm.memory"])
    refuse_changes("runs/a", ["environment.workers"])
    with pytest.raises(ConfigError) as caught:
        refuse_changes("runs/a", ["training.learning_rate", "seed", "--set training.betas"])
    assert str(caught.value).startswith("runs/a is resumed with the settings it was started with")
    answer, _, names = str(caught.value).partition("\n")
    new = "A new run from its checkpoint may have others."
    assert answer.endswith(f"Leave out: seed, --set training.betas. {new}")
    assert names.startswith("What may change: the number of processes, training.steps, ")


def test_the_digest_of_code_is_that_of_the_files_that_settings_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"

    def digest(*names: str) -> str:
        rewards = [{"name": name, "kind": "custom", "target": f"{file}:{name}"} for name in names]
        return code_digest(
            settings_of(RunConfig(rewards=rewards or {"kind": "exact"})), "rewards", "environment"
        )

    none, missing = digest(), digest("f")
    file.write_text("f = g = len")
    two = digest("f", "g")
    assert digest("f") == two != missing == none
    file.write_text("f = g = max")
    assert digest("f", "g") != two
    assert digest() == none


def test_the_digest_of_code_has_imported_modules_and_the_asked_sections_only(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("my_losses")
    settings = {"objective": {"surrogate": {"kind": "custom", "target": "my_losses:Mine"}}}
    before, rewards = code_digest(settings, "objective"), code_digest(settings, "rewards")
    (tmp_path / "my_losses.py").write_text("class Mine: x = 1\n")
    assert code_digest(settings, "objective") != before
    assert code_digest(settings, "rewards") == rewards == code_digest({}, "objective")


def test_every_setting_that_differs_has_changed() -> None:
    now = settings_of(RunConfig())
    before = {**now, "training": {**now["training"], "steps": 3}, "origin": "a@1"}
    now = merge(now, nested("data.gym.size", 3))
    assert changed(before, now) == {
        "training.steps": (3, 100),
        "origin": ("a@1", None),
        "data.gym.size": (None, 3),
    }
    assert changed(now, {**now, "origin": "a@1"}) == {"origin": (None, "a@1")}
