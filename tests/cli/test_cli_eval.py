"""What `rlobj eval` makes of its arguments, before anything is sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError, DataError
from rlobj.config.run_config import compose
from rlobj.data.prompts import MATH_TEMPLATE, PLAIN_TEMPLATE
from rlobj.models.embedded import EMBEDDED_PROFILE
from rlobj.training import RunDirectory
from rlobj_cli.app import app
from rlobj_cli.evaluate.requests import LONGEST, Options, find_target

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
    target = find_target(str(run), None, Options({}))
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
    [benchmark] = find_target(str(run), None, Options(options)).benchmarks
    assert benchmark.settings.temperature == 0
    assert len(benchmark.problems) == 2
    assert (benchmark.config.rewards.kind, benchmark.config.evaluation.samples) == ("math", 1)


def test_a_task_is_graded_exactly_in_its_own_words_on_its_test_split(run: Path) -> None:
    from rlobj.data.tasks import TASKS

    [benchmark] = find_target(str(run), "addition", Options({})).benchmarks
    assert benchmark.config.data.template == PLAIN_TEMPLATE
    assert benchmark.config.rewards.kind == "exact"
    assert benchmark.problems == TASKS["addition"].problems("test")


def test_a_file_is_asked_whole_and_graded_as_mathematics(problems: Path) -> None:
    target = find_target("some/model", f"{problems}, max-digits", Options({}))
    first, second = target.benchmarks
    assert len(first.problems) == 3
    assert (first.config.rewards.kind, first.config.data.template) == ("math", MATH_TEMPLATE)
    assert (first.settings.max_tokens, first.settings.temperature) == (1024, 1.0)
    assert second.config.rewards.kind == "exact"
    assert target.locate(lambda *_: None) == "some/model"


def test_the_embedded_policy_has_a_task_of_its_own() -> None:
    [benchmark] = find_target("embedded", None, Options({})).benchmarks
    assert benchmark.name.startswith("addition")
    assert benchmark.settings.max_tokens == EMBEDDED_PROFILE["sampling"]["max_tokens"]


def test_a_model_without_problems_asks_for_them() -> None:
    with pytest.raises(ConfigError, match="name the problems: --on aime24,"):
        find_target("some/model", None, Options({}))


def test_a_path_that_is_not_there_is_no_hub_id(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"Did you mean '.*run'"):
        find_target(str(run.parent / "rnu"), "addition", Options({}))


def test_a_run_without_a_checkpoint_says_how_to_get_one(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run").create(compose("stapo", [])[0])
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        find_target(str(tmp_path / "run"), None, Options({}))


def test_unknown_problems_and_wrong_options_are_told(problems: Path) -> None:
    with pytest.raises(DataError, match=r"'aditon'.* Did you mean 'addition'"):
        find_target("some/model", "aditon", Options({}))
    wrong = {"--template": ("data.template", "no place")}
    with pytest.raises(ConfigError, match=r"data\.template \(from --template\)"):
        find_target("some/model", str(problems), Options(wrong))
    result = runner.invoke(app, ["eval", "some/model", "--on", "addition", "--reward", "exakt"])
    assert result.exit_code == 2
    assert "Did you mean 'exact'?" in " ".join(result.output.split())
    assert runner.invoke(app, ["eval", "embedded", "-n", "0"]).exit_code == 2


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Files of two benchmarks."""
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    for name, count in (("aime24", 30), ("math500", 4)):
        rows = (f'{{"id": "{name}-{i}", "problem": "{i}?", "answer": "{i}"}}' for i in range(count))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def test_benchmarks_are_asked_by_name_from_files(data_dir: Path) -> None:
    target = find_target("some/model", "aime24,math500", Options({}, data_dir=data_dir))
    aime, math = target.benchmarks
    assert (aime.name, len(aime.problems), len(math.problems)) == ("aime24", 30, 4)
    assert aime.config.data.template == MATH_TEMPLATE
    assert (aime.config.rewards.kind, aime.settings.max_tokens) == ("math", LONGEST)
    assert aime.fitted
    assert not aime.notes
    assert any("500" in note for note in math.notes)  # 4 problems are not all
    assert aime.data_digest != math.data_digest


def test_a_protocol_sets_what_options_then_change(data_dir: Path) -> None:
    from rlobj.evaluation.protocols import find_protocol

    asked = {"--top-p": ("evaluation.top_p", 0.5)}
    options = Options(asked, protocol=find_protocol("stapo"), data_dir=data_dir)
    aime, math = find_target("some/model", "aime24,math500", options).benchmarks
    assert (aime.config.evaluation.samples, math.config.evaluation.samples) == (32, 4)
    assert (aime.settings.temperature, aime.settings.top_p) == (0.7, 0.5)
    assert (aime.settings.max_tokens, aime.fitted) == (20480, False)


def test_a_run_keeps_nothing_of_its_own_data_on_a_benchmark(run: Path, data_dir: Path) -> None:
    [aime] = find_target(str(run), "aime24", Options({}, data_dir=data_dir)).benchmarks
    assert aime.config.data.template == MATH_TEMPLATE
    assert (aime.config.rewards.kind, aime.config.data.test) == ("math", None)


def test_sources_of_one_name_are_refused(tmp_path: Path, problems: Path) -> None:
    other = tmp_path / "other" / problems.name
    other.parent.mkdir()
    other.write_text(problems.read_text())
    with pytest.raises(ConfigError, match=r"several sources are called problems\.jsonl"):
        find_target("some/model", f"{problems},{other}", Options({}))


def test_commands_beside_the_nameless_one(tmp_path: Path) -> None:
    for command in ("compare", "regrade", "score", "show"):
        result = runner.invoke(app, ["eval", command, "--help"])
        assert result.exit_code == 0
        assert f"rlobj eval {command}" in result.output
    for words in (["eval", "--help"], ["eval"]):
        assert "--protocol" in runner.invoke(app, words).output
    result = runner.invoke(app, ["eval", "show", str(tmp_path)])
    assert result.exit_code == 2
    assert "is no evaluation" in " ".join(result.output.split())
    result = runner.invoke(app, ["eval", "x/y", "--protocol", "stpo", "--on", "addition"])
    assert result.exit_code == 2
    assert "Did you mean 'stapo'" in " ".join(result.output.split())


def test_a_run_with_a_benchmark_for_its_tests_is_asked_as_in_training(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {
        "model": {"name": "some/model"},
        "data": {"source": "dapo-math-17k", "test": "aime24"},
        "sampling": {"max_tokens": 7},
    }
    made = RunDirectory(tmp_path / "run")
    made.create(compose("stapo", [("test", own)])[0])
    (made.checkpoints / "step-000002" / "model").mkdir(parents=True)
    [aime] = find_target(str(made.path), None, Options({}, data_dir=data_dir)).benchmarks
    assert (aime.name, aime.config.data.template) == ("aime24", MATH_TEMPLATE)
    assert aime.settings.max_tokens == 7
    asked = Options({"--template": ("data.template", "Q: {prompt}")}, data_dir=data_dir)
    [aime] = find_target(str(made.path), None, asked).benchmarks
    assert aime.config.data.template == "Q: {prompt}"


def test_sampling_settings_of_training_are_refused_with_those_of_evaluation() -> None:
    layer = ("--set sampling.top_k=20", {"sampling": {"top_k": 20}})
    with pytest.raises(ConfigError, match=r"here it is evaluation\.top_k|Here it is evaluation"):
        find_target("some/model", "addition", Options({}, layers=[layer]))
    asked = Options({"--top-k": ("evaluation.top_k", 20)})
    [benchmark] = find_target("some/model", "addition", asked).benchmarks
    assert benchmark.settings.top_k == 20


def test_a_protocol_with_changes_says_which(data_dir: Path) -> None:
    from rlobj.evaluation.protocols import find_protocol

    dapo = find_protocol("dapo")
    asked = {"-n": ("evaluation.samples", 1)}
    for settings, name in (({}, "dapo"), (asked, "dapo, but for samples")):
        options = Options(settings, protocol=dapo, data_dir=data_dir)
        [aime] = find_target("some/model", "aime24", options).benchmarks
        assert aime.under(dapo) == name


@pytest.mark.parametrize("on", [",", " ", ""])
def test_nothing_to_ask_is_refused(on: str) -> None:
    with pytest.raises(ConfigError, match="names nothing: aime24"):
        find_target("some/model", on, Options({}))


def test_a_model_may_be_called_as_the_nameless_command_once_was(tmp_path: Path) -> None:
    result = runner.invoke(app, ["eval", "run", "--on", "addition", "--protocol", "none such"])
    assert "no protocol 'none such'" in " ".join(result.output.split())
