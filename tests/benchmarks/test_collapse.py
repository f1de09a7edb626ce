"""The study behind docs/diagnosis.md."""

from __future__ import annotations

import json
import shlex

import pytest
from benchmarks import collapse
from benchmarks.harness import ROOT

from rlobj.settings.building import compose
from rlobj.settings.layers import parse_setting

PAGE = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["sick", "cured"])
def test_the_page_trains_the_runs_of_the_study(name: str) -> None:
    lines = PAGE.replace("\\\n", "").splitlines()
    [line] = [line for line in lines if f"--out runs/{name} " in line]
    words = shlex.split(line)
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert given == [f"training.steps={collapse.STEPS}", *collapse.RUNS[name]]


def test_the_settings_of_each_run_are_valid_and_their_rules_are_those_of_the_presets() -> None:
    objectives = {
        name: compose("grpo", [("--set", parse_setting(text)) for text in settings]).objective
        for name, settings in collapse.RUNS.items()
    }
    assert str(objectives["stapo"].drop_rule) == str(compose("stapo").objective.drop_rule)
    assert str(objectives["sick"].weight) == str(objectives["cured"].weight)
    assert objectives["grpo"].weight is None


def test_the_results_have_all_runs_and_say_what_the_page_says() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "collapse.json").read_text())["rows"]
    found = {(row["run"], row["seed"]): row for row in rows}
    assert found.keys() == {
        (name, seed) for name in collapse.RUNS for seed in range(collapse.SEEDS)
    }
    for seed in range(collapse.SEEDS):
        assert "collapse" in found["sick", seed]["findings"]
        assert "collapse" in found["stapo", seed]["findings"]
        assert not found["cured", seed]["findings"]
        assert found["cured", seed]["after"] > found["cured", seed]["before"] + 0.15
    assert f"to {found['sick', 0]['after']:.3f}" in PAGE
