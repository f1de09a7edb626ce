"""Runs whose reward does not say what is right: the mean reward takes the place of the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rlobj
from rlobj.runs.checkpoints import held_out
from rlobj.runs.run_folder import RunFolder
from rlobj.training import TrainingResult

ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
SETTINGS = {
    "training.steps": 3,
    "data.test_fraction": 0.3,
    "evaluation.every": 1,
    "checkpoint.every": 1,
    "checkpoint.keep": 5,
}


def tidy(response: str, answer: str, **_: Any) -> float:
    """At most -1: 0.2 more for a tidy length, which pays also where the response is wrong."""
    return -1.0 if response == answer else -3.0 + 0.2 * (len(response) == 1)


def told(response: str, answer: str, **_: Any) -> dict[str, Any]:
    return {"reward": tidy(response, answer), "correct": response == answer}


def trained(reward: Any, folder: Path, *screens: Any) -> TrainingResult:
    named = {"settings": SETTINGS, "out": folder, "callbacks": screens}
    return rlobj.train("grpo", data=ROWS, reward=reward, **named)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: trained(f, folder / name) for name, f in (("number", tidy), ("told", told))}


def accuracies(names: Sequence[str]) -> list[str]:
    return [name for name in names if "accuracy" in name]


def test_a_run_with_numbers_has_the_held_out_reward_and_no_accuracy(runs):
    for line, other in zip(runs["number"].history, runs["told"].history, strict=True):
        assert accuracies([*line]) == []
        assert line["eval/reward"] < -1
        for over in ("samples", "problems"):
            assert line[f"eval/reward_se_{over}"] > 0
            assert 0 <= other[f"eval/accuracy_se_{over}"] < 0.5
        assert "eval/reward" not in other
        if line["step"]:
            assert line["reward/mean"] == pytest.approx(other["reward/mean"])
            assert 0 <= other["reward/accuracy"] < 1


def test_the_best_checkpoint_has_the_highest_reward_also_below_0(runs):
    run = runs["number"]
    measure, found = held_out(run.path)
    measured = {line["step"]: line["eval/reward"] for line in run.history if line["step"]}
    assert (measure.key, list(found.values())) == ("eval/reward", list(measured.values()))
    assert run.best_checkpoint is not None
    best = max(measured, key=measured.__getitem__)
    assert run.best_checkpoint.name == f"step-{best:06d}"


def test_undecided_responses_of_a_function_with_numbers_are_no_accuracy(tmp_path):
    result = trained(lambda response, answer, **_: None if response else 1.0, tmp_path / "run")
    last = result.history[-1]
    assert accuracies([*last]) == []
    assert last["reward/undecided_share"] == 1
    assert last["eval/reward"] is None or last["eval/reward"] != last["eval/reward"]
    assert RunFolder(tmp_path / "run").lines()[-1]["eval/reward"] is None
    assert result.best_checkpoint is None
