"""`rlobj presets`: lists, explains, compares and checks presets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from screens import printed as output

from rlobj import load_preset
from rlobj.settings.presets import preset_names
from rlobj.settings.schema import preset_schema


@pytest.mark.parametrize("columns", [80, 160])
def test_list_shows_every_preset_with_its_paper(columns: int) -> None:
    text = output("presets", "list", columns=columns)
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert set(preset_names()) <= {line.split()[0] for line in lines if line.strip()}
    assert text.count("arXiv:") == len(preset_names()) - 1
    assert "https://yifanzhang-pro.github.io/FlashREINFORCE" in text  # a report without a number


@pytest.mark.parametrize("name", ["stapo", "lp-reg"])
def test_show_without_a_terminal_prints_a_valid_preset_file(name: str, tmp_path: Path) -> None:
    text = output("presets", "show", name)
    file = tmp_path / "again.yaml"
    file.write_text(text)
    assert load_preset(file).objective == load_preset(name).objective
    assert "# loss = " in text


def test_diff_shows_only_settings_that_differ() -> None:
    text = output("presets", "diff", "dapo", "stapo")
    assert "objective.drop" in text
    assert "sampling.group_size" in text
    assert "objective.divisor" not in text
    assert "training.learning_rate" not in text


def test_check_reports_all_errors_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "base: dapo-loss\nobjective: {drop: (advantage > 0) & (prop < 0.002)}\n"
        "training: {stepz: 3}\nsampling: {group_size: 0}\n"
    )
    text = output("presets", "check", str(file), code=2)
    for expected in ("'prop'", "Did you mean 'prob'?", "training.stepz", "sampling.group_size"):
        assert expected in text
    assert "^" in text


def test_check_names_the_tables_on_which_training_would_fail(tmp_path: Path) -> None:
    file = tmp_path / "spread.yaml"
    spread = "length.max(by='group') - length.min(by='group')"
    file.write_text(f"base: dapo-loss\nobjective:\n  shape: advantage / ({spread})\n")
    text = output("presets", "check", str(file), code=2)
    assert "spread.yaml: training fails at a table with" in text
    assert "equal lengths: 'advantage / (length.max(by='group')" in text
    assert "at row 0 (response 0, token 0)" in text
    assert "is valid" not in text
    file.write_text(f"base: dapo-loss\nobjective:\n  shape: advantage / maximum({spread}, 1)\n")
    text = output("presets", "check", str(file))
    assert "is valid" in text
    assert "the loss on 9 small tables" in text
    assert "loss = " not in text  # which `presets show` prints
    file.write_text("base: stapo\ntraining: {updates_per_step: 1}\n")
    assert "no effect: the bounds of {kind: clip" in output("presets", "check", str(file))


@pytest.mark.parametrize(
    "settings",
    [
        "base: stapo\ntraining: {steps: 7}",
        "preset: stapo\nmodel: {name: some/model}\ndata: {source: mine.jsonl}\n"
        "training: {steps: 7}",
    ],
    ids=["base", "model-and-data"],
)
def test_check_and_diff_accept_a_configuration_file(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text(settings)  # --config needs no ending
    assert "mine is valid" in output("presets", "check", "mine")
    rows = [line.split() for line in output("presets", "diff", "stapo", "mine").splitlines()]
    assert ["training.steps", "100", "7"] in rows
    assert ["model.name", "–", "some/model"] in rows or "model" not in settings
    assert ["data.source", "–", "mine.jsonl"] in rows or "data" not in settings
    assert "same settings" in output("presets", "diff", "mine", "mine")


def test_check_accepts_a_cut_by_code_that_is_not_imported(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("base: grpo\nobjective: {drop: \"when(custom('no.py:Such'), 1, 0).top(0.5)\"}")
    assert "is valid" in output("presets", "check", str(file))
    text = output("presets", "show", str(file))
    assert "the k largest when(custom(" in text
    assert "Attributes:" not in text


def test_show_explains_populations_and_counts_the_updates_of_all_phases() -> None:
    text = " ".join(output("presets", "show", "stapo").split())
    assert "drop: (advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)" in text
    assert "ceil(0.8·n)" in text
    assert "no effect" not in text
    lopti = output("presets", "show", "ar-lopti")
    assert "4 optimizer updates per rollout" in lopti


def test_schema_prints_the_json_schema_of_a_preset_file() -> None:
    assert json.loads(output("presets", "schema")) == preset_schema()
