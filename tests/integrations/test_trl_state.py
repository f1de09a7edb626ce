"""Evaluation, checkpoints and two processes of an ObjectiveTrainer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from datasets import Dataset
from integrations.trl_runs import config, off, train, trainer, weights

from rlobj import AdaptiveGate, BatchError, ConfigError, load_preset
from rlobj.integrations.trl import ObjectiveTrainer

STARE = load_preset("stare").resolved(8)
ADAPTIVE = STARE.replace(controllers={"W": AdaptiveGate(target=2.0, start=1.1, low=1.0, high=1.5)})


def saved(folder: Path, steps: int, resume: Path | None = None, **settings: Any) -> Any:
    """Train with a checkpoint every second update."""
    plan = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    args = config(folder, max_steps=steps, **plan, **settings)
    one = trainer(ObjectiveTrainer, args, objective=ADAPTIVE, record=False)
    one.train(resume_from_checkpoint=str(resume) if resume else None)
    return one


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint after two updates."""
    folder = tmp_path_factory.mktemp("stopped")
    saved(folder, 2)
    return folder / "checkpoint-2"


@pytest.mark.parametrize(
    "settings", [pytest.param({}, marks=pytest.mark.slow), {"num_iterations": 2}]
)
def test_a_resumed_run_ends_like_one_that_was_not_stopped(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    whole = saved(tmp_path / "whole", 4, **settings)
    saved(tmp_path / "parts", 2, **settings)
    resumed = saved(tmp_path / "parts", 4, tmp_path / "parts" / "checkpoint-2", **settings)
    assert torch.equal(weights(whole), weights(resumed))
    controlled = [line.get("rlobj/controller/W") for line in whole.state.log_history[:-1]]
    assert controlled == [line.get("rlobj/controller/W") for line in resumed.state.log_history[:-1]]
    assert len(set(controlled)) > 1
    files = [
        (tmp_path / name / "checkpoint-4" / "rlobj.json").read_text() for name in ("whole", "parts")
    ]
    assert files[0] == files[1]
    assert json.loads(files[0])["state"]["update"] == 4


@pytest.mark.slow
def test_a_checkpoint_of_another_objective_or_trainer_is_refused(
    tmp_path: Path, stopped: Path
) -> None:
    checkpoint = shutil.copytree(stopped, tmp_path / "checkpoint-2")
    one = trainer(ObjectiveTrainer, config(tmp_path), objective="dapo-loss", record=False)
    with pytest.raises(ConfigError, match=r"an objective with other controllers: \['W'\]"):
        one.train(resume_from_checkpoint=str(checkpoint))
    file = checkpoint / "rlobj.json"
    for text in ("{", "[]", "{}"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="resume from a checkpoint of an ObjectiveTrainer"):
            saved(tmp_path, 4, checkpoint)
    file.unlink()
    with pytest.raises(ConfigError, match="resume from a checkpoint of an ObjectiveTrainer"):
        saved(tmp_path, 4, checkpoint)


def test_an_evaluation_is_an_update_of_its_own_that_changes_nothing(tmp_path: Path) -> None:
    evaluation = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "per_device_eval_batch_size": 8,
        "num_generations_eval": 2,
        "eval_dataset": Dataset.from_dict({"prompt": ["1+1=", "2+2=", "3+3=", "4+4="]}),
    }
    settings = {"num_iterations": 2, "beta": 0.01, "max_steps": 2}
    one, found = train(tmp_path, "lopti", **settings, **evaluation)
    two, alone = train(tmp_path, "lopti", **settings)
    assert [off(a, b) for a, b in zip(found, alone, strict=True)] == [0, 0]
    assert one._progress.state == two._progress.state
    losses = [line for line in one.state.log_history if "eval_loss" in line]
    assert len(losses) == 2
    for line in losses:
        assert line["eval_loss"] == pytest.approx(line["eval_rlobj/loss/total"], abs=1e-6)


RUN = """
import sys
from pathlib import Path
import torch
from integrations.test_trl_state import on_processes
on_processes(Path(sys.argv[1]))
torch.distributed.destroy_process_group()
"""


def on_processes(folder: Path) -> None:
    """Gradients of updates of 32 responses, on as many processes as there are."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    window = {"gradient_accumulation_steps": 4 // size, "max_steps": 2}
    found = {}
    for preset in ("stapo", "gdpo", "stare"):
        one, found[preset] = train(folder / preset, preset, "auto", **window)
        found[preset].append(weights(one))
    broken = trainer(ObjectiveTrainer, config(folder, **window), objective="grpo", record=False)
    if rank == size - 1:
        score = broken._forward

        def one_token_is_nan(*arguments: Any, **named: Any) -> Any:
            logprobs, *rest = score(*arguments, **named)
            logprobs = logprobs.clone()
            logprobs[0, 0] = torch.nan
            return logprobs, *rest

        broken._forward = one_token_is_nan
    try:
        broken.train()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    torch.save(found, folder / f"{size}-{rank}.pt")


@pytest.mark.slow
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Also: a loss that is not finite on one process stops both before the optimizer's step."""
    on_processes(tmp_path)
    forked.run_ranks(["-c", RUN, tmp_path], timeout=600, **forked.TEST_MODULES)
    whole, first, last = (
        torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1")
    )
    assert whole["error"].startswith(BatchError.__name__)
    assert last["error"].startswith("BatchError: column 'logprobs' is nan")
    assert first["error"].startswith("RankFailed: the loss failed on 1 other rank")
    for preset in ("stapo", "gdpo", "stare"):
        assert torch.equal(first[preset][-1], last[preset][-1])
        for one, two in zip(whole[preset][:-1], first[preset][:-1], strict=True):
            assert off(two, one) < 1e-3
