"""What may change when a run is resumed."""

from __future__ import annotations

import pytest

from rlobj.base.errors import ConfigError
from rlobj.config.resuming import RESUMABLE_SETTINGS, refuse_changes
from rlobj.config.run_config import RunConfig, settings_of


def test_every_resumable_setting_exists() -> None:
    for name in RESUMABLE_SETTINGS:
        value = settings_of(RunConfig(rewards={"kind": "custom", "target": "mine.py:score"}))
        for part in name.split("."):
            value = value[part]


def test_all_changes_that_would_change_results_are_named_at_once() -> None:
    refuse_changes("runs/a", ["training.steps", "--set checkpoint.every", "sampling.vllm.memory"])
    with pytest.raises(ConfigError) as caught:
        refuse_changes("runs/a", ["training.steps", "seed", "--set training.learning_rate"])
    assert str(caught.value).startswith("runs/a is resumed with the settings it was started with")
    assert str(caught.value).endswith("Leave out: seed, --set training.learning_rate")


def test_a_setting_whose_name_only_begins_like_a_resumable_one_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Leave out: training\.steps_more"):
        refuse_changes("runs/a", ["training.steps_more"])
