"""Which code and which servers of a folder are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.settings.layers import nested
from rlobj.settings.presets import merge
from rlobj.settings.run_config import RunConfig, settings_of
from rlobj.settings.trust import imports, named_code, require_trust, trust_option, trusted_config


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
    rule = "(prob < 0.1)\n  & ~custom('mine.py:Rare', a=custom('m:In')).share(by='group') > 0"
    objective = {"reweight": rule, "penalties": [{"coefficient": "custom('m:C')", "kind": "kl"}]}
    assert named_code({"objective": objective}) == ["mine.py:Rare", "m:In", "m:C"]
    settings["rewards"] = {"kind": "custom", "target": "<Python object f>"}
    assert named_code(settings["rewards"]) == named_code(settings_of(RunConfig())) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"rewards": {"kind": "custom", "target": "a.py:f"}},
        {"environment": {"target": "a.py:f", "tools": []}},
        {"environment": {"target": None, "tools": ["calculator", "a.py:f"]}},
        {"columns": {"mine": "a.py:f"}},
    ],
)
def test_code_of_a_folder_needs_trust_and_that_of_the_caller_does_not(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match=r"name code: a\.py:f\. If you trust it, add trust=True$"):
        require_trust("runs/a", settings, {})
    require_trust("runs/a", settings, settings)


def test_a_folder_whose_policy_writes_programs_is_not_trusted() -> None:
    settings = {"environment": {"tools": ["calculator", "python"]}}
    with pytest.raises(ConfigError, match=r"code: environment\.tools=python"):
        require_trust("runs/a", settings, {})
    require_trust("runs/a", settings, {"environment": {"tools": ["python"]}})


def refused(url: Any, given: dict[str, Any], engine: str = "vllm-server") -> str:
    """Why a run with this server is refused; "" = it is not."""
    run = {"sampling": {"engine": engine, "server": {"url": url}}}
    try:
        require_trust("runs/a", merge(run, given), given)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_key_goes_to_a_server_of_a_shared_run_only_if_the_caller_names_it() -> None:
    near, far = "http://127.0.0.1:8000", "http://far.example:8000"
    again = nested("sampling.server.url", far)
    found = refused(far, {"sampling": {"engine": "vllm-server"}})
    assert found.startswith("the settings of runs/a name a server on another machine: http://far")
    assert found.endswith("If it is yours, add trust=True")
    assert refused("http://127.0.0.1@far.example", {}) != ""
    assert refused(far, again) == refused(near, {}) == refused("http://[::1]:1", {}) == ""
    assert refused(far, {}, engine="transformers") == ""
    assert refused(far, nested("sampling.engine", "vllm-server"), engine="transformers") != ""


def test_a_command_needs_trust_if_anything_of_a_run_does() -> None:
    far = {"scores": {"teacher": {"server": "http://far.example"}}}
    assert trust_option(settings_of(RunConfig())) == trust_option({"sampling": {}}) == ""
    assert trust_option({"columns": {"hard": "mine.py:f"}}) == trust_option(far) == " --trust"


def test_a_folder_is_read_without_its_code_before_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("import pathlib; pathlib.Path('executed').touch()\n")
    layers = [("run", {"objective": {"surrogate": {"kind": "custom", "target": "mine.py:Mine"}}})]
    with pytest.raises(ConfigError, match=r"name code: mine\.py:Mine"):
        trusted_config("runs/a", layers, {}, False)
    assert not (tmp_path / "executed").exists()
    with pytest.raises(ConfigError, match="no such name"):
        trusted_config("runs/a", layers, {}, True)
    assert (tmp_path / "executed").exists()


def test_a_header_names_code_as_it_is_seen_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = {"columns": {"hard": f"{tmp_path}/a.py:f", "late": "b:f", "easy": "data"}}
    assert imports(code) == "executes a.py:f, b:f"
    with without_imports(["b:f"]):
        assert imports(code) == "executes b:f; does not execute a.py:f"
    assert imports(settings_of(RunConfig())) == ""


@pytest.mark.parametrize("true", [True, 1, "true", "yes"])
def test_every_way_to_write_true_asks_for_trust_in_the_code_of_a_model(true: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.trust_remote_code=true"):
        require_trust("RUN", {"model": {"trust_remote_code": true}}, {})


def test_a_file_whose_name_begins_as_a_python_object_is_code() -> None:
    target = "<Python objects/evil.py:f"
    rewards = {"kind": "custom", "target": target}
    environment = {"target": target, "tools": f"{target}2"}
    assert named_code({"rewards": rewards}) == [target]
    assert named_code({"environment": environment}) == [target, f"{target}2"]


def test_a_dry_run_trusts_code_that_it_does_not_import_and_no_server() -> None:
    code = {"rewards": {"kind": "custom", "target": "a.py:f"}}
    server = {"scores": {"teacher": {"server": "http://192.0.2.2:1"}}}
    with without_imports():
        trusted_config("RUN", [("run", code)], {}, False)
        with pytest.raises(ConfigError, match=r"192\.0\.2\.2"):
            trusted_config("RUN", [("run", server)], {}, False)


def test_problems_of_verifiers_are_code_that_settings_name():
    several = [{"source": "verifiers:mine"}, "sums.jsonl"]
    data = {"source": several, "test": "verifiers:other"}
    assert named_code({"data": data}) == ["verifiers:mine", "verifiers:other"]
    assert named_code({"data": {"source": "sums.jsonl", "test": None}}) == []
