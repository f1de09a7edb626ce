"""What may change when a run is resumed."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.config.resuming import RECORDED_SETTINGS, RESUMABLE_SETTINGS, named_code, refuse_changes
from rlobj.config.run_config import RunConfig, settings_of


def test_every_resumable_setting_exists() -> None:
    for name in (*RESUMABLE_SETTINGS, *RECORDED_SETTINGS):
        value = settings_of(RunConfig(rewards={"kind": "custom", "target": "mine.py:score"}))
        for part in name.split("."):
            value = value[part]


def test_all_changes_that_would_change_results_are_named_at_once() -> None:
    refuse_changes("runs/a", ["training.steps", "--set checkpoint.every", "sampling.vllm.memory"])
    with pytest.raises(ConfigError) as caught:
        refuse_changes("runs/a", ["training.learning_rate", "seed", "--set training.betas"])
    assert str(caught.value).startswith("runs/a is resumed with the settings it was started with")
    assert str(caught.value).endswith("Leave out: seed, --set training.betas")


def test_a_setting_whose_name_only_begins_like_a_resumable_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Leave out: training\.steps_more"):
        refuse_changes("runs/a", ["training.steps_more"])


def test_all_code_that_settings_name_is_listed() -> None:
    custom = {"kind": "custom", "target": "mine.py:Mine"}
    several = [{"name": "a", "kind": "exact"}, {"name": "b", "kind": "custom", "target": "m:f"}]
    settings = {
        "objective": {"surrogate": custom, "penalties": [custom], "drop": "prob < 0.1"},
        "rewards": several,
        "model": {"trust_remote_code": True},
        "sampling": {
            "vllm": {"extra": {"logits_processors": ["pkg.mod:Own"], "x": 0.5, "y": True}}
        },
    }
    expected = ["mine.py:Mine", "m:f", "model.trust_remote_code=true", "pkg.mod:Own"]
    assert named_code(settings) == expected
    settings["rewards"] = {"kind": "custom", "target": "<Python object: f>"}
    assert named_code(settings["rewards"]) == named_code(settings_of(RunConfig())) == []
