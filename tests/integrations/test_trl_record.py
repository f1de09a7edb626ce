"""The record of an ObjectiveTrainer: its folder is read as a run of `rlobj train`."""

from __future__ import annotations

import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from datasets import Dataset
from integrations.trl_runs import config, reward, trainer, weights
from runs import metrics

import rlobj
from rlobj import Objective, read_records, read_tables
from rlobj.base.errors import ConfigError
from rlobj.base.folders import lock_folder
from rlobj.base.yaml import load_yaml
from rlobj.integrations.trl import ObjectiveTrainer, recording

PLACE = [(name, "ascending") for name in ("step", "update", "response", "position")]
RECORDED = {"record": True, "output": {"tables_every": 1}}


slow = partial(pytest.param, marks=pytest.mark.slow)
ENTROPY = "20-entropy"
OLD = Objective().reweight("0.3*old_prob + 0.7*exp(-old_entropy)")
PHASES = Objective().split("old_prob < 0.02")


def train(folder: Path, objective: Any, resume: Any = None, **settings: Any) -> Any:
    one = trainer(ObjectiveTrainer, config(folder, **settings), objective=objective, **RECORDED)
    one.train(resume_from_checkpoint=resume)
    return one


WINDOWS = {
    "one micro-batch": {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1},
    "four micro-batches": {},
    "two updates per rollout": {"steps_per_generation": 8},
    "two iterations": {"num_iterations": 2, "max_steps": 4},
    "two rollouts per update": {"steps_per_generation": 2},
}


@pytest.mark.parametrize(
    ("objective", "windows"),
    [
        (ENTROPY, "four micro-batches"),
        slow(OLD, "two iterations"),
        *(slow(ENTROPY, each) for each in WINDOWS if each != "four micro-batches"),
        slow(OLD, "one micro-batch"),
    ],
)
def test_the_recorded_objective_gives_the_recorded_weights_to_the_bit(
    tmp_path: Path, objective: Any, windows: str
) -> None:
    settings = WINDOWS[windows]
    train(tmp_path, objective, **settings)
    updates = list(read_tables(tmp_path / "_rlobj"))
    assert len(updates) == settings.get("max_steps", 3)
    for update in updates:
        plan = update.objective.plan([update.table], update.state)
        assert torch.equal(plan.weights[0], update.weights)
        assert len(update.table.lengths) == 32
        assert [len(response) for _, response in update.sequences] == update.table.lengths.tolist()


def test_phases_are_replayed(tmp_path: Path) -> None:
    train(tmp_path, PHASES, num_iterations=2, max_steps=4)
    updates = list(read_tables(tmp_path / "_rlobj"))
    assert [(u.step, u.update) for u in updates] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert len({str(u.objective.phase) for u in updates}) == 2
    replayed = rlobj.replay(tmp_path / "_rlobj")
    assert "gives all recorded weights again, to the bit" in repr(replayed)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run of 12 updates."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, ENTROPY, max_steps=12, save_strategy="steps", save_steps=5)
    return folder


def test_a_run_is_inspected_replayed_diagnosed_and_reported(whole: Path) -> None:
    run = whole / "_rlobj"
    lines = metrics(run)
    assert [line["step"] for line in lines] == list(range(1, 13))
    for name in ("policy/entropy", "train/grad_norm", "train/learning_rate", "reward/mean"):
        assert all(isinstance(line[name], float) for line in lines), name
    assert not any("reward/accuracy" in line for line in lines)  # 0 and 1 may mean anything
    found = rlobj.inspect(run, dropped=True)
    assert found.count == sum(line["tokens/dropped"] for line in lines) > 0
    replayed = rlobj.replay(run, ["stapo", "prob < 0.1"])
    assert replayed.reproduced == replayed.population == sum(line["tokens/step"] for line in lines)
    [diagnosis] = rlobj.diagnose(run).runs
    assert diagnosis.steps == 12
    # there are neither log-probs of a sampler, nor an accuracy, nor a value
    unchecked = ("truncation", "sampler-drift", "teacher-trouble", "value-trouble")
    assert diagnosis.unchecked == unchecked
    assert "Gradient norm" in rlobj.report(run, whole / "report.html").read_text()


def test_the_verifier_alone_says_what_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in for `accuracy_reward`; every other completion is undecided, and then all."""

    def verdicts(completions: Any, trainer_state: Any, **_: Any) -> list[float | None]:
        found, last = reward(completions), trainer_state.global_step == 2
        return [None if last or i % 2 else each for i, each in enumerate(found)]

    monkeypatch.setattr(recording, "accuracy_reward", verdicts)
    functions = [lambda completions, **_: [0.5] * len(completions), verdicts]
    named = {"objective": "grpo", "reward_funcs": functions, **RECORDED}
    one = trainer(ObjectiveTrainer, config(tmp_path), **named)
    one.train()
    *lines, last = metrics(tmp_path / "_rlobj")
    logged = [each for each in one.state.log_history if "rewards/verdicts/mean" in each]
    assert [line["reward/accuracy"] for line in lines] == pytest.approx(
        [each["rewards/verdicts/mean"] for each in logged[:2]]
    )
    assert "reward/accuracy" not in last
    assert any(0 < line["reward/accuracy"] < line["reward/mean"] for line in lines)


@pytest.mark.parametrize("rollout", [{"steps_per_generation": 8}, {"steps_per_generation": 2}])
def test_the_accuracy_of_a_step_is_that_of_all_its_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rollout: dict[str, int]
) -> None:
    """An evaluation between two updates of a rollout is no part of it; an update has two rollouts.

    In the training, a quarter of the first 16 responses is right, and half of the next 16.
    """
    one: Any = None

    def verdicts(completions: Any, **_: Any) -> list[float]:
        if not one.model.training:
            return [1.0] * len(completions)
        start = one._progress.rows
        return [
            float(i % (4 if i % 32 < 16 else 2) == 0)
            for i in range(start, start + len(completions))
        ]

    monkeypatch.setattr(recording, "accuracy_reward", verdicts)
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
    args = config(tmp_path, max_steps=2, **rollout, **evaluation)
    rows = Dataset.from_dict({"prompt": ["1+1=", "2+2="]})
    named = {"objective": "grpo", "reward_funcs": verdicts, "eval_dataset": rows, **RECORDED}
    one = trainer(ObjectiveTrainer, args, **named)
    one.train()
    lines = metrics(tmp_path / "_rlobj")
    assert {line["reward/accuracy"] for line in lines} == {3 / 8}


def test_the_configuration_says_only_what_trl_said(whole: Path) -> None:
    """The learning rate of a step is that of its update, which TRL's schedule lowers."""
    rates = [line["train/learning_rate"] for line in metrics(whole / "_rlobj")]
    assert rates == pytest.approx([1e-3 * (12 - step) / 12 for step in range(12)])
    told = load_yaml((whole / "_rlobj" / "config.resolved.yaml").read_text())
    assert not {"rewards", "checkpoint"} & set(told)
    assert set(told["data"]) == {"source"}
    assert set(told["evaluation"]) == {"every"}
    assert told["training"]["schedule"] == "linear"
    assert told["training"]["steps"] == 12
    assert "warmup_steps" not in told["training"]


def test_a_run_is_continued_in_trl_only(whole: Path) -> None:
    run = whole / "_rlobj"
    for attempt in (rlobj.resume, lambda path: rlobj.evaluate(path, "math500")):
        with pytest.raises(ConfigError, match="start its script again; in TRL"):
            attempt(run)
    with pytest.raises(ConfigError, match="record of a run in another trainer"):
        rlobj.train("grpo", out=run)


def test_a_resumed_run_continues_its_record(whole: Path, tmp_path: Path) -> None:
    """From its fifth step; the steps after it are in the folder, and are repeated."""
    folder = shutil.copytree(whole, tmp_path / "run")
    train(folder, ENTROPY, folder / "checkpoint-5", max_steps=12)
    assert not (folder / "_rlobj-2").exists()
    rows, repeated = (read_records(each / "_rlobj").sort_by(PLACE) for each in (whole, folder))
    assert repeated.equals(rows)
    assert metrics(folder / "_rlobj") == metrics(whole / "_rlobj")


@pytest.mark.slow
def test_a_second_run_in_the_same_output_folder_gets_a_record_of_its_own(tmp_path: Path) -> None:
    for _ in range(2):
        train(tmp_path, "dapo-loss", max_steps=1)
    assert metrics(tmp_path / "_rlobj") == metrics(tmp_path / "_rlobj-2")


@pytest.mark.slow
def test_the_record_changes_nothing_about_the_training(tmp_path: Path) -> None:
    found = []
    for record in (True, False):
        named = {"objective": "stapo", "record": record}
        one = trainer(ObjectiveTrainer, config(tmp_path / str(record), max_steps=2), **named)
        one.train()
        found.append(weights(one))
    assert torch.equal(*found)
    assert not (tmp_path / "False" / "_rlobj").exists()


def test_rows_of_a_run_that_fails_are_written_and_the_folder_is_unlocked(tmp_path: Path) -> None:
    def broken(completions: Any, trainer_state: Any, **_: Any) -> list[float]:
        if trainer_state.global_step == 2:
            raise RuntimeError("no verdict")
        return reward(completions)

    one = trainer(
        ObjectiveTrainer, config(tmp_path), objective=ENTROPY, reward_funcs=broken, **RECORDED
    )
    with pytest.raises(RuntimeError, match="no verdict"):
        one.train()
    assert set(read_records(tmp_path / "_rlobj")["step"].to_pylist()) == {1, 2}
    with lock_folder(tmp_path / "_rlobj", "training in"):  # nobody has it
        pass


@pytest.mark.slow
def test_two_processes_record_what_one_does(tmp_path: Path) -> None:
    split = {"per_device_train_batch_size": 4, "max_steps": 2}
    train(tmp_path / "one", ENTROPY, gradient_accumulation_steps=8, **split)
    settings = {"gradient_accumulation_steps": 4, **split}
    words = [__file__, tmp_path / "two", json.dumps(settings)]
    forked.run_ranks(words, timeout=300, **forked.TEST_MODULES)
    one, two = (read_records(tmp_path / name / "_rlobj").sort_by(PLACE) for name in ("one", "two"))
    same = ["step", "update", "response", "group", "position", "token", "effect", "clause"]
    assert len(one) > 100
    assert two.select([*same, "before", "after"]).equals(one.select([*same, "before", "after"]))
    for name in ("weight", "advantage", "prob", "entropy"):
        a, b = (torch.from_numpy(rows[name].to_numpy().copy()) for rows in (one, two))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    for update in read_tables(tmp_path / "two" / "_rlobj"):
        plan = update.objective.plan([update.table], update.state)
        assert torch.equal(plan.weights[0], update.weights)


if __name__ == "__main__":  # one of two processes
    train(Path(sys.argv[1]), ENTROPY, **json.loads(sys.argv[2]))
    torch.distributed.destroy_process_group()  # gloo's threads may abort a process that only exits
