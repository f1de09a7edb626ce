"""Logs of other trainers are read as metrics of a run."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.runs import logs
from rlobj.runs.logs import read_log

ACCURACIES = [0.6] * 12 + [0.1] * 8
"""Of a run that collapses after step 12."""


def of_trl(step: int, mean: float) -> dict[str, Any]:
    deviation = math.sqrt(mean * (1 - mean))
    return {"step": step, "reward": mean, "reward_std": deviation, "completions/max_length": 64.0}


def of_verl(step: int, mean: float) -> dict[str, Any]:
    ends = {"critic/score/max": 1.0, "critic/score/min": 0.0, "response_length/max": 64.0}
    return {"step": step, "data": {"critic/score/mean": mean, **ends}}


def write_trl(folder: Path, name: str = "trainer_state.json") -> None:
    history = [of_trl(step, mean) for step, mean in enumerate(ACCURACIES, 1)]
    history.append({"step": 20, "train_runtime": 3.0})
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"log_history": history}))


def write_verl(folder: Path, name: str = "metrics.jsonl") -> None:
    lines = [json.dumps(of_verl(step, mean)) for step, mean in enumerate(ACCURACIES, 1)]
    (folder / name).write_text("\n".join(lines) + "\n")


def write_tensorboard(folder: Path) -> None:
    with SummaryWriter(str(folder / "runs" / "now")) as writer:
        for step, mean in enumerate(ACCURACIES, 1):
            for name, value in of_trl(step, mean).items():
                if name != "step":
                    writer.add_scalar(f"train/{name}", value, step)


@pytest.mark.parametrize("write", [write_trl, write_verl, write_tensorboard])
def test_a_collapse_is_found_in_every_log(write: Any, tmp_path: Path) -> None:
    write(tmp_path)
    [run] = rlobj.diagnose(tmp_path).runs
    assert [finding.name for finding in run.findings] == ["collapse"]
    assert run.findings[0].since == 17  # the mean of five steps is low
    assert run.steps == 20
    assert {"collapse", "update-too-large"} <= {*run.checked}
    assert {"truncation", "verifier-trouble", "inert-setting"} <= {*run.unchecked}
    assert "without tokens" in run.notes[0]
    page = rlobj.report(tmp_path).read_text()
    assert "without tokens" in page
    assert "tokens dropped" not in page
    log = read_log(tmp_path)
    assert log is not None
    assert log.lines[0]["reward/std"] == pytest.approx(math.sqrt(0.24))
    assert log.config.sampling.max_tokens == 64


def test_a_reward_that_rises_by_more_than_its_noise_has_risen(tmp_path: Path) -> None:
    """The noise is that of neighbouring steps, because a log has no number of groups."""
    for gain, names in ((0.02, []), (0.0, ["entropy"])):
        history = [
            {"step": i, "reward": 0.3 + gain * i + 0.01 * (-1) ** i, "entropy": 1.0 / i}
            for i in range(1, 16)
        ]
        (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
        half = [line for line in history if line["step"] < 4 or line["entropy"] > 0.1]
        assert len(half) < len(history)
        found = rlobj.diagnose(tmp_path).findings
        moved = [f.name for f in found if "the reward did not" in f.evidence]
        assert moved == names


def test_the_newest_checkpoint_of_trl_has_all_steps(tmp_path: Path) -> None:
    for name in ("checkpoint-20", "checkpoint-9"):
        write_trl(tmp_path, f"{name}/trainer_state.json")
    file = tmp_path / "checkpoint-9" / "trainer_state.json"
    file.write_text(json.dumps({"log_history": json.loads(file.read_text())["log_history"][:9]}))
    log = read_log(tmp_path)
    assert log is not None
    assert log.path.parent.name == "checkpoint-20"


def test_values_of_one_metric_are_averaged_and_later_ones_replace_earlier_ones(tmp_path: Path):
    sets = {"val-core/math/acc/mean@4": 0.5, "val-core/code/acc/mean@4": 0.25, "other": "text"}
    lines = [
        {"step": 1, "data": {"critic/score/mean": 1.0, **sets}},
        {"step": 1, "data": {"critic/score/mean": 2.0, "actor/entropy": None}},
    ]
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for path in (tmp_path, tmp_path / "mine.jsonl"):
        log = read_log(path)
        assert log is not None
        assert log.lines == [{"step": 1, "reward/mean": 2.0, "eval/accuracy": 0.375}]


def test_a_log_that_says_nothing_or_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "problems.jsonl").write_text('{"prompt": "1+1", "answer": "2"}\n')
    assert read_log(tmp_path) is None
    with pytest.raises(ConfigError, match="is not a run: it has no"):
        rlobj.diagnose(tmp_path)
    write_verl(tmp_path)
    write_verl(tmp_path, "other.jsonl")
    with pytest.raises(ConfigError, match=r"several runs. Name one: .*metrics.jsonl, .*other"):
        rlobj.report(tmp_path)
    assert rlobj.report(tmp_path / "other.jsonl") == tmp_path / "report.html"
    (tmp_path / "other.jsonl").write_text('{"step": 1, "data": {"actor/entropy": 1}}\n')
    assert read_log(tmp_path / "other.jsonl") is None
    (tmp_path / "other.jsonl").write_text('{"step": 1, "data": {}}\nrubbish\n')
    with pytest.raises(ConfigError, match=r"other.jsonl:2: damaged"):
        read_log(tmp_path / "other.jsonl")
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"cannot read .*log_history"):
        read_log(tmp_path)


def test_values_that_no_run_has_are_no_settings_and_no_steps(tmp_path: Path) -> None:
    history = [
        {"step": 1, "reward": 0.5, "completions/max_length": math.inf, "learning_rate": math.nan},
        {"step": 2, "reward": 0.5, "completions/max_length": 9.0, "learning_rate": -1.0},
        {"step": 10**400, "reward": 0.5},
        {"step": math.nan, "reward": 0.5},
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    log = read_log(tmp_path)
    assert log is not None
    assert [line["step"] for line in log.lines] == [1, 2]
    assert log.config.sampling.max_tokens == 9
    assert rlobj.diagnose(tmp_path).runs[0].steps == 2
    assert rlobj.report(tmp_path).exists()


def test_only_files_are_logs(tmp_path: Path) -> None:
    """A read of a pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "trainer_state.json").mkdir()
    assert read_log(tmp_path) is None
    assert read_log(tmp_path / "pipe.jsonl") is None


def test_a_log_beside_a_record_of_rlobj_is_not_read(tmp_path: Path) -> None:
    """The record says more; the error names it."""
    write_trl(tmp_path)
    (tmp_path / "_rlobj").mkdir()
    (tmp_path / "_rlobj" / "config.resolved.yaml").write_text("{}")
    assert read_log(tmp_path) is None
    with pytest.raises(ConfigError, match=r"Runs in it: .*_rlobj"):
        rlobj.diagnose(tmp_path)


@pytest.mark.parametrize(
    ("name", "package"), [("run-1.wandb", "wandb"), ("events.out.tfevents.1", "tensorboard")]
)
def test_a_missing_package_is_named(name: str, package: str, tmp_path: Path, monkeypatch: Any):
    (tmp_path / name).write_bytes(b":W&B")
    monkeypatch.setattr(logs, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=f"needs the package '{package}'"):
        read_log(tmp_path)
