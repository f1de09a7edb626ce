"""The commands of docs/stability.md: those of the study, and those of the full-size recipe."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.harness import ROOT
from benchmarks.stability.__main__ import _asked, _parser
from benchmarks.stability.conditions import GROUPS, objective
from typer.testing import CliRunner

from rlobj.config.layers import file_layer, parse_setting
from rlobj.config.run_config import compose, settings_of
from rlobj_cli.app import app

PAGE = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8").replace("\\\n", " ")
TRAININGS = [shlex.split(line) for line in re.findall(r"^rlobj (train .*full-size.*)$", PAGE, re.M)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the file of the page."""
    found = re.search(r"```yaml\n(# full-size\.yaml\n.*?)```", PAGE, re.DOTALL)
    assert found is not None
    (tmp_path / "full-size.yaml").write_text(found[1], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_command_of_the_full_size_recipe_passes_a_dry_run(recipe: Path) -> None:
    assert len(TRAININGS) == len(GROUPS["core"])
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
    assert found.keys() == GROUPS["core"].keys()
    assert all(config == found["stapo"] for config in found.values())


def test_the_full_size_recipe_is_that_of_stapo(recipe: Path) -> None:
    own = {"model": {"name": "any"}, "data": {"source": "dapo-math-17k"}}
    stapo = compose("stapo", [("own", own)])
    config = compose("stapo", [file_layer(recipe / "full-size.yaml")])
    assert config.sampling.model_dump(exclude={"engine"}) == stapo.sampling.model_dump(
        exclude={"engine"}
    )
    for name in ("updates_per_step", "learning_rate", "warmup_steps", "weight_decay"):
        assert getattr(config.training, name) == getattr(stapo.training, name)
    assert config.data.max_prompt_tokens == stapo.data.max_prompt_tokens


def test_options_of_the_study_on_the_page_exist() -> None:
    rows = re.findall(r"^\| (`--.*?) \|", PAGE, re.M)
    options = [shlex.split(text) for row in rows for text in re.findall(r"`(--[^`]+)`", row)]
    assert len(options) > 10
    lines = re.findall(r"^python -m benchmarks\.stability (.*)$", PAGE, re.M)
    assert len(lines) == 2
    for words in [*(["--runs", "DIR", *each] for each in options), *map(shlex.split, lines)]:
        _asked(_parser().parse_args(["3" if word == "K" else word for word in words]))
    named = " ".join(word for words in options for word in words)
    assert all(group in named for group in GROUPS if group != "core")


def test_what_the_page_says_about_the_edge_is_in_the_results() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "stability.json").read_text("utf-8"))
    edge = results["comparisons"][results["chosen"]["edge"]]
    differences = {(each["name"], each["base"]): each for each in edge}
    lp_reg = differences.pop(("lp-reg", "dapo-loss"))
    control = differences.pop(("stapo", "random"))
    assert all(len(each["seeds"]) == 20 and each["p"] > 0.05 for each in differences.values())
    others = [round(each["difference"], 2) for each in differences.values()]
    assert (min(others), max(others)) == (-0.04, 0.05)
    assert lp_reg["p"] < 1e-5
    assert [round(each, 2) for each in (control["difference"], *control["interval"])] == [
        0.04,
        -0.03,
        0.10,
    ]

    def last(condition: str) -> list[float]:
        runs = [each for each in results["runs"] if each["setting"] == results["chosen"]["edge"]]
        mine = [each for each in runs if each["condition"] == condition and each["seed"] < 4]
        return [each["last"] for each in sorted(mine, key=lambda each: each["seed"])]

    first = [a - b for a, b in zip(last("stapo"), last("dapo-loss"), strict=True)]
    assert max(first) < 0
    assert round(sum(first) / 4, 2) == -0.10
    assert round(differences["stapo", "dapo-loss"]["difference"], 2) == 0.0
