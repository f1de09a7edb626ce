"""What TRL itself logs of a run is read by the diagnosis and the report."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from integrations.trl_runs import config, trainer
from transformers import Trainer
from trl import GRPOTrainer

import rlobj
from rlobj.runs.logs import NAMES, read_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of TRL's own trainer, with a checkpoint and TensorBoard."""
    path = tmp_path_factory.mktemp("trl") / "out"
    saved = {"save_strategy": "steps", "save_steps": 3, "report_to": "tensorboard"}
    trainer(GRPOTrainer, config(path, **saved)).train()
    return path


def test_the_state_of_a_trainer_and_its_events_say_the_same(folder: Path) -> None:
    states, events = read_log(folder), read_log(folder / "runs")
    assert states is not None
    assert events is not None
    assert states.path.name == "trainer_state.json"
    assert [line["step"] for line in states.lines] == [1, 2, 3]
    for line, other in zip(states.lines, events.lines, strict=True):
        assert line == pytest.approx(other, rel=1e-6)
    history = json.loads(states.path.read_text())["log_history"]
    assert [line["reward/mean"] for line in states.lines] == [x["reward"] for x in history]
    [run] = rlobj.diagnose(folder).runs
    assert {"collapse", "no-signal", "entropy"} <= {*run.checked}
    assert rlobj.report(folder).parent == folder


def test_trl_has_every_name_of_the_table(folder: Path) -> None:
    """In the log of a run, or as a text in the code of its trainer."""
    log = read_log(folder)
    assert log is not None
    code = inspect.getsource(GRPOTrainer) + inspect.getsource(Trainer)
    theirs = {row["trl"].removeprefix("eval_") for row in NAMES.values() if "trl" in row}
    logged = {name for line in json.loads(log.path.read_text())["log_history"] for name in line}
    absent = {name for name in theirs - logged if f'"{name}"' not in code}
    assert absent == {"rewards/accuracy_reward/mean"}  # of a function of TRL that this run lacks
