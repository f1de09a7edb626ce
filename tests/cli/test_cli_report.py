"""`rlobj report`: the phases, the means and the charts of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from tiny import tiny_config
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError
from rlobj.training import RunDirectory
from rlobj_cli.train.report import metric_series, phase_seconds, report

SECONDS = {"sampling": 2.0, "forward": 1.0, "backward": 0.75, "other": 0.25, "grading": 0.0}


def line(step: int) -> dict:
    return {
        "step": step,
        **{f"time/{name}": seconds for name, seconds in SECONDS.items()},
        "time/step": 4.0,
        "time/grading_hidden": 0.5,
        "tokens/sampled": 800.0,
        "tokens/per_second": 200.0,
        "tokens/useful_share": 0.975,
        "tokens/skipped_share": 0.25,
        "tokens/skipped_logits_share": 0.4375,
        "tokens/rank_balance": 1.004,
        "reward/mean": step / 10,
        "policy/entropy": 1.0,
    }


@pytest.fixture
def run(tmp_path) -> Path:
    directory = RunDirectory(tmp_path / "run & more")
    directory.create(tiny_config(tmp_path, "stapo"))
    directory.append({"step": 0, "eval/accuracy": 0.25})
    for step in range(1, 6):
        directory.append(line(step))
    return directory.path


def invoke(*words: str):
    app = typer.Typer()
    app.command()(report)
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, list(words))


def test_the_table_shows_each_phase_with_its_share(run):
    result = invoke(str(run))
    assert result.exit_code == 0
    rows = [text.split() for text in result.output.splitlines()]
    assert ["sampling", "2.000", "50.0%", "400", "█" * 15] in rows
    assert ["other", "0.250", "6.2%", "3,200", "█" * 2] in rows
    assert ["step", "4.000", "100.0%", "200"] in rows
    assert ["grading,", "beside", "sampling", "0.500", "12.5%", "1,600"] in rows
    names = [row[0] for row in rows if len(row) > 3 and row[2].endswith("%")]
    assert names == ["sampling", "forward", "backward", "other", "step"]


def test_the_means_and_the_charts_are_shown(run):
    before = {path.name for path in run.iterdir()}
    output = invoke(str(run)).output
    rows = filter(None, (line.split() for line in output.splitlines()))
    facts = {" ".join(words[:-1]): words[-1] for words in rows}
    assert facts["useful tokens of forward passes"] == "0.975"
    assert facts["most loaded process over the mean"] == "1.004"
    assert facts["tokens left out of updates"] == "0.250"
    assert facts["response tokens without logits in updates"] == "0.438"
    assert facts["tokens/s without evaluating and writing"] == "200"
    assert "0.500 ┤" in output  # the reward's highest
    assert "entropy" not in output  # it did not move
    assert {path.name for path in run.iterdir()} == before


def test_the_best_checkpoint_is_named(run):
    directory = RunDirectory(run)
    for step, accuracy in ((6, 0.5), (7, 0.75), (8, 0.25)):
        directory.append({**line(step), "eval/accuracy": accuracy})
        (directory.checkpoints / f"step-{step:06d}").mkdir()
    assert "best checkpoint step-000007, held-out accuracy 0.750" in invoke(str(run)).output


def test_a_run_of_one_step_is_reported_without_charts(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.create(tiny_config(tmp_path, "stapo"))
    directory.append(line(1))
    result = invoke(str(directory.path))
    assert result.exit_code == 0
    assert "sampling" in result.output
    assert "┤" not in result.output


def test_a_folder_without_a_run_or_a_finished_step_is_an_error(tmp_path):
    assert isinstance(invoke(str(tmp_path)).exception, ConfigError)
    directory = RunDirectory(tmp_path / "run")
    directory.create(tiny_config(tmp_path, "stapo"))
    error = invoke(str(directory.path)).exception
    assert isinstance(error, ConfigError)
    assert "no finished step" in str(error)


def test_phases_come_longest_first_and_other_last():
    assert list(phase_seconds([line(1), line(2)]).items()) == [
        ("sampling", 4.0),
        ("forward", 2.0),
        ("backward", 1.5),
        ("other", 0.5),
    ]
    assert phase_seconds([{"time/step": 1}]) == {}


def test_accuracy_has_no_chart_if_it_equals_the_reward():
    same = [{"step": i, "reward/mean": i / 9, "reward/accuracy": i / 9} for i in range(3)]
    assert list(metric_series(same)) == ["reward"]
    other = [{**each, "reward/accuracy": 0.5} for each in same]
    assert list(metric_series(other)) == ["reward", "accuracy"]
