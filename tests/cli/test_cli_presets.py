"""`rlobj presets` and `rlobj explain`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rlobj import load_preset
from rlobj.config.presets import preset_names
from rlobj_cli.app import app

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


def output(*words: str, code: int = 0) -> str:
    result = runner.invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("columns", [80, 160])
def test_list_names_every_preset_whole_with_its_paper(columns: int) -> None:
    result = runner.invoke(app, ["presets", "list"], env={"COLUMNS": str(columns)})
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= columns
    assert set(preset_names()) <= {line.split()[0] for line in lines if line.strip()}
    assert result.output.count("arXiv:") == len(preset_names())


@pytest.mark.parametrize("name", ["stapo", "lp-reg"])
def test_show_without_a_terminal_is_a_preset_file_again(name: str, tmp_path: Path) -> None:
    text = output("presets", "show", name)
    file = tmp_path / "again.yaml"
    file.write_text(text)
    assert load_preset(file).objective == load_preset(name).objective
    assert "# loss = " in text


def test_diff_shows_what_differs_and_nothing_else() -> None:
    text = output("presets", "diff", "dapo", "stapo")
    assert "objective.drop" in text
    assert "sampling.group_size" in text
    assert "objective.surrogate" not in text
    assert "training.learning_rate" not in text


def test_diff_of_equals_says_so() -> None:
    assert "same settings" in output("presets", "diff", "stapo", "stapo")


def test_check_reports_every_mistake_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "base: dapo-loss\nobjective: {drop: (advantage > 0) & (prop < 0.002)}\n"
        "training: {stepz: 3}\nsampling: {group_size: 0}\n"
    )
    text = output("presets", "check", str(file), code=2)
    for expected in ("'prop'", "Did you mean 'prob'?", "training.stepz", "sampling.group_size"):
        assert expected in text
    assert "^" in text


def test_check_accepts_presets_and_configurations(tmp_path: Path) -> None:
    file = tmp_path / "good.yaml"
    file.write_text("preset: stapo\ntraining: {updates_per_step: 1}\n")
    text = " ".join(output("presets", "check", str(file)).split())
    assert f"{file} is valid" in text
    assert "cannot act: the bounds of Clip" in text
    for name in preset_names():
        output("presets", "check", name)


def test_copy_writes_the_file_once(tmp_path: Path) -> None:
    target = tmp_path / "new" / "mine.yaml"
    output("presets", "copy", "stapo", str(target))
    assert target.read_text("utf-8") == load_preset("stapo").text
    target.write_text("changed: true\n")
    assert "--force" in output("presets", "copy", "stapo", str(target), code=2)
    assert yaml.safe_load(target.read_text()) == {"changed": True}
    output("presets", "copy", "stapo", str(target), "--force")
    assert target.read_text("utf-8") == load_preset("stapo").text


def test_copy_into_a_folder_keeps_the_name_and_other_endings_are_refused(tmp_path: Path) -> None:
    output("presets", "copy", "dapo", str(tmp_path))
    assert (tmp_path / "dapo.yaml").is_file()
    assert ".yaml" in output("presets", "copy", "dapo", str(tmp_path / "mine.txt"), code=2)


def test_an_unknown_preset_is_told_the_nearest() -> None:
    for words in (("presets", "show"), ("explain",), ("presets", "copy"), ("train", "--preset")):
        assert "Did you mean 'stapo'?" in output(*words, "stpo", code=2)


def test_explain_tells_populations_and_what_cannot_act() -> None:
    text = " ".join(output("explain", "stapo").split())
    assert "drop: (advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)" in text
    assert "ceil(0.8·n)" in text
    assert "cannot act" not in text
    text = " ".join(output("explain", "stapo", "--updates", "1").split())
    assert "cannot act: the bounds of Clip(high=0.28)" in text
