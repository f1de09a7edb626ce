"""The end of `rlobj train`: numbers, tokens that the objective touched, and the next commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from record_rows import dropped, write_records
from screens import console, text_of
from tiny import tiny_config

from rlobj.runs.configuration import read_run_config
from rlobj.runs.run_folder import RunFolder
from rlobj.training import TrainingResult
from rlobj_cli.screen.runs import show_history, show_results, train_on

RULE = "(advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)"


def finished(folder: Path, preset: str = "stapo", **metrics: float) -> Path:
    """A run of ten steps without a record."""
    run = RunFolder(folder / preset)
    run.create(tiny_config(folder, preset).model_copy(update={"preset": preset}))
    run.append({"step": 0, "eval/accuracy": 0.3, "eval/accuracy_se_samples": 0.01})
    for step in range(1, 11):
        line = {"step": step, "reward/mean": 0.5, "tokens/step": 1000, "reward/std": 0.1}
        run.append({**line, "tokens/dropped": 2.0 * (preset == "stapo"), **metrics})
    run.append({"step": 10, "eval/accuracy": 0.8, "eval/accuracy_se_samples": 0.01})
    return run.path


def shown(run: Path, width: int = 80) -> str:
    screen = console(width)
    show_history(screen, read_run_config(run), run, RunFolder(run).lines())
    text = text_of(screen)
    return text[text.find("rlobj inspect") :] if "rlobj inspect" in text else ""


def numbers(run: Path) -> str:
    """What stands above the tokens."""
    screen = console(80)
    show_history(screen, read_run_config(run), run, RunFolder(run).lines())
    return " ".join(text_of(screen).partition("rlobj inspect")[0].split())


def wrong(text: str, **columns: Any) -> dict[str, Any]:
    return dropped(text, clause=RULE, **columns)


@pytest.mark.parametrize("width", [80, 120])
def test_dropped_tokens_stand_in_their_responses_beside_their_prompts(tmp_path, width):
    run = finished(tmp_path)
    row = wrong("2", step=9, response=5, before="16;", after="6+9=25#25")
    write_records(run, [row], {9: 10_000})
    text = shown(run, width)
    assert max(map(len, text.splitlines()[1:])) <= width
    assert "touched tokens: 1 (0.010%) of 10,000 tokens" in text
    assert "dropped 1 (0.010%), by  (advantage > 0)" in text
    assert "[2]6+9=25#25" in text


def test_a_rule_that_touched_nothing_says_so(tmp_path: Path) -> None:
    run = finished(tmp_path)
    write_records(run, [], {1: 10_000})
    text = " ".join(shown(run).split())
    assert "touched tokens: 0 of 10,000 tokens" in text
    assert "--where RULE selects among all tokens" in text


def test_calls_and_the_accuracy_with_and_without_them_are_shown(tmp_path: Path) -> None:
    counts = {"turns/mean": 1.5, "tools/calls": 32.0, "response/count": 64.0}
    run = finished(tmp_path, "grpo", **counts, **{"tools/accuracy_with": 0.75})
    text = numbers(run)
    assert "calls per response, first/last 2 steps 0.500 → 0.500" in text
    assert "accuracy with a call, first/last 2 steps 0.750 → 0.750" in text
    assert "accuracy without" not in text  # all responses call
    line = {"step": 11, "reward/mean": 0.5, "tokens/step": 1000, "tools/accuracy_without": 0.25}
    RunFolder(run).append(line | counts)
    assert "accuracy without, first/last 2 steps none → 0.250" in numbers(run)
    no_calls = {**counts, "tools/calls": 0.0, "tools/accuracy_without": 0.5}
    text = numbers(finished(tmp_path, "dapo", **no_calls))  # an environment without tools
    assert "calls per" not in text
    assert "accuracy without" not in text


def test_an_objective_without_rules_prints_no_tokens(tmp_path: Path) -> None:
    assert shown(finished(tmp_path, "grpo")) == ""


@pytest.mark.parametrize("ill", [False, True])
def test_a_run_is_not_continued_while_a_finding_holds(tmp_path: Path, ill: bool) -> None:
    equal = {"groups/without_signal_share": 1.0, "reward/accuracy": 0.0}
    run = finished(tmp_path, "grpo", **(equal if ill else {}))
    history = RunFolder(run).lines()
    screen, config = console(80), read_run_config(run)
    show_results(screen, config, TrainingResult(run, 10, 1.0, history))
    text = text_of(screen)
    assert ("Found: constant-reward, since step" in text) == ill
    assert (f"rlobj diagnose {run}" in text) == ill
    assert (train_on(run, config) in text) != ill
    assert f"rlobj report {run}" in text
