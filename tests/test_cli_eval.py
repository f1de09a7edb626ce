"""What `rlobj eval` makes of its arguments, before anything is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlobj.composition import compose
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE
from rlobj.embedded import EMBEDDED_PROFILE
from rlobj.errors import ConfigError, DataError
from rlobj.training import RunDirectory
from rlobj_cli.app import app
from rlobj_cli.targets import find_target

runner = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"})


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Three problems in a file."""
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(f'{{"problem": "{i}+1?", "answer": "{i + 1}"}}\n' for i in range(3)))
    return file


@pytest.fixture
def run(tmp_path: Path, problems: Path) -> Path:
    """A run's folder with a checkpoint, as far as `rlobj eval` looks before it loads a model."""
    own: dict[str, Any] = {
        "model": {"name": "some/model"},
        "data": {"source": str(problems), "template": "Q: {prompt}", "test": str(problems)},
        "rewards": {"kind": "exact"},
        "sampling": {"max_tokens": 7},
        "evaluation": {"temperature": 0.5, "samples": 9},
    }
    made = RunDirectory(tmp_path / "run")
    made.create(compose("stapo", [("test", own)])[0])
    for step in (2, 10):
        (made.checkpoints / f"step-{step:06d}" / "model").mkdir(parents=True)
    return made.path


def test_a_run_brings_its_newest_model_its_problems_and_its_settings(run: Path) -> None:
    target = find_target(str(run), None, {})
    [benchmark] = target.benchmarks
    assert target.locate(lambda *_: None) == str(run / "checkpoints" / "step-000010" / "model")
    assert len(benchmark.problems) == 3
    assert benchmark.config.data.template == "Q: {prompt}"
    assert benchmark.config.rewards.kind == "exact"
    settings = benchmark.settings
    assert (settings.temperature, settings.max_tokens, settings.top_k) == (0.5, 7, 0)


def test_options_win_over_the_run(run: Path) -> None:
    options = {
        "--temperature": ("evaluation.temperature", 0.0),
        "--limit": ("data.limit", 2),
        "--reward": ("rewards.kind", "math"),
        "-n": ("evaluation.samples", 1),
    }
    [benchmark] = find_target(str(run), None, options).benchmarks
    assert benchmark.settings.temperature == 0
    assert len(benchmark.problems) == 2
    assert (benchmark.config.rewards.kind, benchmark.config.evaluation.samples) == ("math", 1)


def test_a_task_is_graded_exactly_in_its_own_words_on_its_test_split(run: Path) -> None:
    from rlobj.data.tasks import TASKS

    [benchmark] = find_target(str(run), "addition", {}).benchmarks
    assert benchmark.config.data.template == PLAIN_TEMPLATE
    assert benchmark.config.rewards.kind == "exact"
    assert benchmark.problems == TASKS["addition"].problems("test")


def test_a_file_is_asked_whole_and_graded_as_mathematics(problems: Path) -> None:
    target = find_target("some/model", f"{problems}, max-digits", {})
    first, second = target.benchmarks
    assert len(first.problems) == 3
    assert (first.config.rewards.kind, first.config.data.template) == ("math", MATH_TEMPLATE)
    assert (first.settings.max_tokens, first.settings.temperature) == (1024, 1.0)
    assert second.config.rewards.kind == "exact"
    assert target.locate(lambda *_: None) == "some/model"


def test_the_embedded_policy_has_a_task_of_its_own() -> None:
    [benchmark] = find_target("embedded", None, {}).benchmarks
    assert benchmark.name.startswith("addition")
    assert benchmark.settings.max_tokens == EMBEDDED_PROFILE["sampling"]["max_tokens"]


def test_a_model_without_problems_asks_for_them() -> None:
    with pytest.raises(ConfigError, match="name the problems: --on addition,max-digits"):
        find_target("some/model", None, {})


def test_a_path_that_is_not_there_is_no_hub_id(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean '.*run'"):
        find_target(str(run.parent / "rnu"), "addition", {})


def test_a_run_without_a_checkpoint_says_how_to_get_one(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").create(compose("stapo", [])[0])
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        find_target(str(tmp_path / "run"), None, {})


def test_unknown_problems_and_wrong_options_are_told(problems: Path) -> None:
    with pytest.raises(DataError, match=r"'aditon'.* Did you mean 'addition'"):
        find_target("some/model", "aditon", {})
    with pytest.raises(ConfigError, match=r"data\.template \(from --template\)"):
        find_target("some/model", str(problems), {"--template": ("data.template", "no place")})
    result = runner.invoke(app, ["eval", "some/model", "--on", "addition", "--reward", "exakt"])
    assert result.exit_code == 2
    assert "Did you mean 'exact'?" in " ".join(result.output.split())
    assert runner.invoke(app, ["eval", "embedded", "-n", "0"]).exit_code == 2
