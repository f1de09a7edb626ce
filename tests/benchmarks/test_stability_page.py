"""The commands of docs/studies.md: those of the study, and those of the full-size recipe."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.harness import ROOT
from benchmarks.stability.__main__ import _parser
from benchmarks.stability.conditions import objective
from typer.testing import CliRunner

from rlobj.settings.building import compose
from rlobj.settings.layers import file_layer, parse_setting
from rlobj.settings.run_config import settings_of
from rlobj_cli.app import app

PAGE = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").replace("\\\n", " ")
TRAININGS = [shlex.split(line) for line in re.findall(r"^rlobj (train .*full-size.*)$", PAGE, re.M)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the file of the page."""
    found = re.search(r"```yaml\n(# full-size\.yaml\n.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / "full-size.yaml").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_command_of_the_full_size_recipe_passes_a_dry_run(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlobj.models.checking.on_hub", lambda name: False)  # tests have no hub
    assert len(TRAININGS) == 5
    for words in TRAININGS:
        done = CliRunner().invoke(app, [*words, "--dry-run"])
        assert done.exit_code == 0, done.output
        assert "dry run: nothing was written" in done.output
    assert [entry.name for entry in recipe.iterdir()] == ["full-size.yaml"]


@pytest.mark.usefixtures("recipe")
def test_only_the_objectives_of_the_full_size_runs_differ() -> None:
    found = {}
    for words in TRAININGS:
        given = dict(pairwise(words))
        layers = [file_layer("full-size.yaml")]
        layers += [("--set", parse_setting(given["--set"]))] if "--set" in given else []
        config = settings_of(compose(given["--preset"], layers))
        name = Path(given["--out"]).name.removesuffix("-0")
        assert config.pop("objective") == objective(name).model_dump(mode="json", by_alias=True)
        config.pop("preset")
        found[name] = config
    assert found.keys() == {"dapo-loss", "stare", "lp-reg", "stapo", "random"}
    assert all(config == found["stapo"] for config in found.values())


def test_the_commands_of_the_study_on_the_page_are_understood() -> None:
    lines = re.findall(r"^python -m benchmarks\.stability (.*)$", PAGE, re.M)
    options = re.findall(r"`(--(?:parts|jobs|retry-failed|report)[^`]*)`", PAGE)
    assert len(lines) == 2
    assert len(options) == 4
    for words in [*lines, *(f"--runs DIR {each}" for each in options)]:
        _parser().parse_args(shlex.split(words.replace("K", "3")))
