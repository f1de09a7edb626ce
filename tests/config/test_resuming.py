"""What may change when a run is resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.config.layers import nested
from rlobj.config.presets import merge
from rlobj.config.resuming import (
    RECORDED_SETTINGS,
    RESUMABLE_SETTINGS,
    changed,
    code_digest,
    named_code,
    refuse_changes,
    require_trust,
)
from rlobj.config.run_config import RunConfig, settings_of


def test_every_resumable_setting_exists() -> None:
    for name in (*RESUMABLE_SETTINGS, *RECORDED_SETTINGS):
        scores = {"teacher": {"server": "http://127.0.0.1:8000"}}
        one, two = {"kind": "custom", "target": "m:f"}, {"kind": "reward_model", "model": "m"}
        value: Any = settings_of(RunConfig(scores=scores))  # type: ignore[arg-type]
        of = [settings_of(RunConfig(rewards=each))["rewards"] for each in (one, two)]  # type: ignore[arg-type]
        value = {**value, "rewards": of[0] | of[1]}
        for part in name.replace("*", "teacher").split("."):
            value = value[part]


def test_all_changes_that_would_change_results_are_named_at_once() -> None:
    refuse_changes("runs/a", ["training.steps", "--set checkpoint.every", "sampling.vllm.memory"])
    refuse_changes("runs/a", ["environment.workers"])
    with pytest.raises(ConfigError) as caught:
        refuse_changes("runs/a", ["training.learning_rate", "seed", "--set training.betas"])
    assert str(caught.value).startswith("runs/a is resumed with the settings it was started with")
    assert str(caught.value).endswith("Leave out: seed, --set training.betas")


def test_all_code_that_settings_name_is_listed() -> None:
    custom = {"kind": "custom", "target": "mine.py:Mine"}
    several = [{"name": "a", "kind": "exact"}, {"name": "b", "kind": "custom", "target": "m:f"}]
    settings = {
        "objective": {"surrogate": custom, "penalties": [custom], "drop": "prob < 0.1"},
        "rewards": several,
        "model": {"trust_remote_code": True},
        "sampling": {"vllm": {"extra": {"worker_cls": "mine", "x": 0.5, "y": True}}},
    }
    expected = ["mine.py:Mine", "m:f", "model.trust_remote_code=true"]
    assert named_code(settings) == [*expected, "sampling.vllm.extra.worker_cls=mine"]
    settings["rewards"] = {"kind": "custom", "target": "<Python object: f>"}
    assert named_code(settings["rewards"]) == named_code(settings_of(RunConfig())) == []


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({"rewards": {"kind": "custom", "target": "a.py:f"}}, "reward=FILE.py:NAME"),
        ({"environment": {"target": "a.py:f", "tools": []}}, "environment=FILE.py:CLASS"),
        ({"environment": {"target": None, "tools": ["python", "a.py:f"]}}, "tools=NAMES"),
        ({"columns": {"mine": "a.py:f"}}, ""),
    ],
)
def test_code_that_is_not_trusted_can_be_named_again_by_its_argument(
    settings: dict[str, Any], again: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        require_trust("runs/a", settings, {})
    assert "name code: a.py:f. It would" in str(caught.value)
    assert str(caught.value).endswith(
        "add trust=True" + f". Or name it again: {again}" * bool(again)
    )
    require_trust("runs/a", settings, settings)


def refused(url: Any, given: dict[str, Any], engine: str = "vllm-server") -> str:
    """Why a run with this server is refused; "" = it is not."""
    run = {"sampling": {"engine": engine, "server": {"url": url}}}
    try:
        require_trust("runs/a", merge(run, given), given)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_key_goes_to_a_server_of_a_shared_run_only_if_it_is_named_again() -> None:
    near, far = "http://127.0.0.1:8000", "http://far.example:8000"
    again = nested("sampling.server.url", far)
    found = refused([near, far], {"sampling": {"engine": "vllm-server"}})
    assert found.startswith("the settings of runs/a name a server on another machine: http://far")
    assert f"set sampling.server.url={far}; or add trust=True" in found
    assert refused("http://127.0.0.1@far.example", {}) != ""
    assert refused(far, again) == refused(near, {}) == refused([near, "http://[::1]:1"], {}) == ""
    assert refused(far, {}, engine="transformers") == ""
    assert refused(far, nested("sampling.engine", "vllm-server"), engine="transformers") != ""


def test_the_digest_of_code_is_that_of_the_files_that_settings_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"

    def digest(*names: str) -> str:
        rewards = [{"name": name, "kind": "custom", "target": f"{file}:{name}"} for name in names]
        return code_digest(settings_of(RunConfig(rewards=rewards or {"kind": "exact"})))

    none, missing = digest(), digest("f")
    file.write_text("f = g = len")
    two = digest("f", "g")
    assert digest("f") == two != missing == none
    file.write_text("f = g = max")
    assert digest("f", "g") != two
    assert digest() == none


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
