"""The end of `rlobj train`: tokens that the objective touched, and the run beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from record_rows import dropped, write_records
from screens import console, text_of
from tiny import tiny_config
from typer.testing import CliRunner

from rlobj.base.errors import ConfigError
from rlobj.config.run_folder import read_run_config
from rlobj.training import RunDirectory, TrainingResult
from rlobj.training.parallel.launcher import without
from rlobj_cli.app import app
from rlobj_cli.train.beside import second_run, show_beside
from rlobj_cli.train.overview import show_history, show_results, train_on
from rlobj_cli.train.touched import show_touched

RULE = "(advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)"


def finished(folder: Path, preset: str = "stapo", **metrics: float) -> Path:
    """A run of ten steps without a record."""
    run = RunDirectory(folder / preset)
    run.create(tiny_config(folder, preset).model_copy(update={"preset": preset}))
    run.append({"step": 0, "eval/accuracy": 0.3, "eval/accuracy_se_samples": 0.01})
    for step in range(1, 11):
        line = {"step": step, "reward/mean": 0.5, "tokens/step": 1000, "reward/std": 0.1}
        run.append({**line, "tokens/dropped": 2.0 * (preset == "stapo"), **metrics})
    run.append({"step": 10, "eval/accuracy": 0.8, "eval/accuracy_se_samples": 0.01})
    return run.path


def shown(run: Path, width: int = 80) -> str:
    screen = console(width)
    show_touched(screen, read_run_config(run).objective, run)
    return text_of(screen)


def numbers(run: Path) -> str:
    """What stands above the tokens."""
    screen = console(80)
    show_history(screen, read_run_config(run), run, RunDirectory(run).lines())
    return " ".join(text_of(screen).partition("touched tokens")[0].split())


def wrong(text: str, **columns: Any) -> dict[str, Any]:
    return dropped(text, clause=RULE, **columns)


@pytest.mark.parametrize("width", [80, 120])
def test_silenced_tokens_stand_in_their_responses_beside_their_prompts(
    tmp_path: Path, width: int
) -> None:
    run = finished(tmp_path)
    write_records(run, [wrong("2", step=9, response=5, before="16;", after="6+9=25#25"), {}])
    sample = {"id": [5], "prompt": ["6+6+4+9="], "response": ["2+6=12;12+4=16;26+9=25#25"]}
    RunDirectory(run).write_table("samples/step-000009.parquet", sample)
    text = shown(run, width)
    assert max(map(len, text.splitlines())) <= width
    assert "touched tokens: 1 (0.010%) of 10,000 tokens" in text
    assert "dropped 1 (0.010%), by  (advantage > 0)" in text
    assert "9      6+6+4+9=│2+6=12;12+4=16;[2]6+9=25#25" in text


def test_precision_recall_and_the_trend_are_shown_for_a_task_with_truth(tmp_path: Path) -> None:
    counts = {"spurious/tokens": 4.0, "spurious/caught": 1.0, "spurious/dropped": 2.0}
    run = finished(tmp_path, **counts)
    write_records(run, [wrong("2")])
    text = numbers(run)
    assert "held-out accuracy before 0.300 [0.280, 0.320] held-out accuracy after 0.800" in text
    assert "reward, first/last 2 steps 0.500 → 0.500" in text
    assert "precision of the rule 10 (50%) of 20" in text
    assert "recall of the rule 10 (25%) of 40" in text
    assert "spurious, first/last 2 steps 0.40% → 0.40%, hardly changed" in text
    for step, (count, word) in enumerate(((0, "hardly changed"), (90, "grew")), 11):
        line = {"step": step, "reward/mean": 0.5, "tokens/step": 1000}
        RunDirectory(run).append({**line, "spurious/tokens": float(count)})
        assert f"%, {word}" in numbers(run)


def test_a_rule_that_touched_nothing_says_how_often_its_parts_held(tmp_path: Path) -> None:
    run = finished(tmp_path)
    write_records(run, [{"prob": 0.02, "advantage": -1.0}, {"prob": 0.5}])
    text = " ".join(shown(run).split())
    assert f"drop touched none of 10,000 tokens: {RULE}" in text
    assert "advantage > 0 held for" in text
    assert "prob < 0.002 held for 0% of the tokens" in text
    assert "entropy.bottom(0.8) held" not in text  # the record cannot answer it


def test_a_rule_of_two_fields_is_named_once(tmp_path: Path) -> None:
    run = finished(tmp_path, "lp-reg")
    write_records(run, [{}])
    text = " ".join(shown(run).split())
    assert "surrogate and proxy_kl touched none of 10,000 tokens" in text
    assert text.count("proxy_gap > 0") == 1


def test_a_reweighting_shows_factors_and_no_precision(tmp_path: Path) -> None:
    counts = {"spurious/tokens": 4.0, "spurious/caught": 0.0, "spurious/dropped": 0.0}
    run = finished(tmp_path, "stare", **counts)
    rows = [{"effect": "reweighted", "clause": "entropy > 1", "factor": f} for f in (1.0, 0.7)]
    write_records(run, [{**row, "step": 5 - i} for i, row in enumerate(rows)])
    text = " ".join(shown(run).split())
    assert "factor" in text
    assert "precision" not in numbers(run)
    assert "1.0000 0.7000 most often" in text  # entropy and factor; not the newest, of factor 1


def test_an_objective_without_rules_and_a_run_without_records_print_little(tmp_path: Path) -> None:
    assert shown(finished(tmp_path, "grpo")) == ""
    assert "records is empty" in " ".join(shown(finished(tmp_path)).split())


def test_hostile_tokens_and_prompts_reach_no_terminal(tmp_path: Path) -> None:
    run, evil = finished(tmp_path), "\x1b[2J[red]\u202e" * 2000
    write_records(run, [wrong(evil, step=9, response=5, before=evil, after=evil)])
    sample = {"id": [5], "prompt": [evil], "response": [evil * 3]}
    RunDirectory(run).write_table("samples/step-000009.parquet", sample)
    text = shown(run)
    assert not {each for each in text if ord(each) < 32} - {"\n"}
    assert "\u202e" not in text
    assert len(text.splitlines()) < 20


@pytest.mark.parametrize("ill", [False, True])
def test_a_run_is_not_continued_while_a_finding_holds(tmp_path: Path, ill: bool) -> None:
    equal = {"groups/without_signal_share": 1.0, "reward/accuracy": 0.0}
    run = finished(tmp_path, "grpo", **(equal if ill else {}))
    history = RunDirectory(run).lines()
    screen, config = console(80), read_run_config(run)
    show_results(screen, config, TrainingResult(run, 10, 1.0, history))
    text = text_of(screen)
    assert ("groups-without-signal  since step" in text) == ill
    assert (f"rlobj diagnose {run}" in text) == ill
    assert (train_on(run, config) in text) != ill
    assert f"rlobj report {run}" in text


# --beside


def test_the_run_beside_differs_in_its_objective_alone(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "stapo")
    config = config.model_copy(update={"preset": "stapo", "seed": 5})
    other, folder = second_run(config, "base", tmp_path / "run")
    assert folder == tmp_path / "run-beside-justrl"
    assert (other.preset, other.objective.drop_rule) == ("justrl", None)
    same = {"preset": config.preset, "objective": config.objective}
    assert other.model_copy(update=same) == config


@pytest.mark.parametrize(
    ("preset", "beside", "message"),
    [
        ("grpo", "base", "grpo builds on no preset. Name one, such as --beside dapo"),
        (None, "base", "a run without --preset builds on no preset"),
        ("stapo", "stapo", "the same as that of the run"),
        ("stapo", "grpoo", "Did you mean 'grpo'"),
        ("stapo", "bas", "--beside bas: Did you mean 'base'"),
    ],
)
def test_an_impossible_run_beside_is_refused(
    tmp_path: Path, preset: str | None, beside: str, message: str
) -> None:
    config = tiny_config(tmp_path, preset or "stapo").model_copy(update={"preset": preset})
    with pytest.raises(ConfigError, match=message):
        second_run(config, beside, tmp_path / "run")


def test_a_folder_with_a_run_is_refused_before_the_first_run_begins(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, "stapo").model_copy(update={"preset": "stapo"})
    RunDirectory(tmp_path / "run-beside-justrl").create(config)
    with pytest.raises(ConfigError, match="already contains a run"):
        second_run(config, "base", tmp_path / "run")


def test_two_runs_are_shown_in_two_columns(tmp_path: Path) -> None:
    screen = console(100)
    show_beside(screen, finished(tmp_path), finished(tmp_path, "justrl"))
    text = text_of(screen)
    rows = [line.split("  ") for line in text.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["stapo", "justrl"] in cells
    assert ["tokens left out", "20 (0.20%)", "0"] in cells
    assert "stapo − justrl: +0.000  [-0.028, +0.028] at 95%, one seed" in text


def test_an_option_is_left_out_with_its_value() -> None:
    words = ["train", "--beside", "base", "--out", "x", "--beside=dapo", "--besides"]
    assert without(words, "--beside") == ["train", "--out", "x", "--besides"]


def test_under_a_launcher_beside_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    words = ["train", "--preset", "stapo", "--beside", "base", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    assert "--beside makes two runs" in result.output
    assert not (tmp_path / "run").exists()


def test_a_dry_run_shows_how_the_second_run_differs(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["train", "--preset", "stapo", "--beside", "base", "--dry-run"]
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, words)
    assert result.exit_code == 0
    differs = result.output.partition("it differs in\n")[2]
    assert [line.split(":")[0].strip() for line in differs.splitlines()] == [
        "objective.drop",
        "preset",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_beside_trains_two_runs_from_the_same_start(tmp_path: Path, processes: str) -> None:
    small = ("training.steps=2", "evaluation.problems=8", "sampling.prompts_per_step=4")
    words = ["train", "--preset", "stapo", "--data", "max-digits", "--beside", "base", "--out", "a"]
    words += [word for setting in small for word in ("--set", setting)]
    done = forked.run(["-m", "rlobj_cli", *words, "--processes", processes], cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stapo: a\njustrl: a-beside-justrl" in done.stdout
    first, second = (
        json.loads((tmp_path / name / "metrics.jsonl").read_text().splitlines()[-2])
        for name in ("a", "a-beside-justrl")
    )
    assert first["step"] == 1
    assert first["reward/mean"] == second["reward/mean"]  # the same first rollout
