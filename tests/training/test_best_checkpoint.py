"""The checkpoint with the best held-out accuracy is saved and kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import tiny_config

from rlobj.base.errors import ConfigError
from rlobj.evaluation.engines import find_model
from rlobj.runs.checkpoints import checkpoints
from rlobj.training import run_training
from rlobj.training.loop.result import TrainingResult
from rlobj.training.loop.trainer import Trainer


@pytest.fixture
def accuracies(monkeypatch):
    """Step -> the held-out accuracy that is measured after it; no other step is evaluated."""
    planned: dict[int, float] = {}

    def evaluate(trainer: Trainer) -> None:
        if trainer.learner.steps in planned:
            trainer.metrics["eval/accuracy"] = planned[trainer.learner.steps]

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    return planned


def trained(
    policy: Path,
    run: Path,
    steps: int = 6,
    every: int = 3,
    resume: bool = False,
    samples: int = 4,
    **settings: float | bool,
) -> TrainingResult:
    config = tiny_config(
        policy,
        sampling={"prompts_per_step": 4, "max_tokens": 2},
        training={"steps": steps},
        evaluation={"every": 0, "samples": samples},
        checkpoint={"every": every, "keep": 1, **settings},
        output={"tables_every": 0, "samples_every": 0},
    )
    return run_training(config, run, resume=resume)


def saved(run: Path) -> list[int]:
    return [int(path.name[-6:]) for path in checkpoints(run)]


@pytest.mark.parametrize(
    ("measured", "left"),
    [
        ({1: 0.2, 2: 0.5, 4: 0.3}, [2, 6]),
        ({2: 0.5, 4: 0.5}, [2, 6]),  # the earliest of equals
        ({2: float("nan"), 4: 0.5, 6: 0.7}, [6]),
        ({6: 0.0}, [6]),  # nothing was solved, so none is best
    ],
)
def test_the_best_checkpoint_stays_beside_the_newest(policy, tmp_path, accuracies, measured, left):
    """Evaluations and regular checkpoints fall on different steps."""
    accuracies.update(measured)
    result = trained(policy, tmp_path / "run")
    assert saved(tmp_path / "run") == left
    found = [value for value in measured.values() if value > 0]
    expected = checkpoints(tmp_path / "run")[0] if found else None
    assert result.best_checkpoint == expected


def test_a_resumed_run_knows_its_best_checkpoint(policy, tmp_path, accuracies):
    accuracies.update({2: 0.5, 5: 0.4, 7: 0.6})
    trained(policy, tmp_path / "run", steps=4)
    assert saved(tmp_path / "run") == [2, 4]
    trained(policy, tmp_path / "run", steps=6, resume=True)
    assert saved(tmp_path / "run") == [2, 6]
    result = trained(policy, tmp_path / "run", steps=8, resume=True)
    assert saved(tmp_path / "run") == [7, 8]
    assert result.best_checkpoint == tmp_path / "run" / "checkpoints" / "step-000007"


def test_an_evaluation_can_name_the_checkpoint_of_a_run(policy, tmp_path, accuracies):
    accuracies.update({2: 0.5})
    run = tmp_path / "run"
    trained(policy, run)
    for name, step in (("best", 2), ("2", 2), ("newest", 6), (None, 6)):
        located = find_model(run, checkpoint=name).locate()
        assert located == str(run / "checkpoints" / f"step-{step:06d}" / "model")
    with pytest.raises(
        ConfigError, match=r"no checkpoint 3 \(checkpoint\.keep .*has 2, 6, newest, best"
    ):
        find_model(run, checkpoint="3")
    with pytest.raises(ConfigError, match="checkpoint best needs a run"):
        find_model(str(policy), checkpoint="best")
    accuracies.clear()
    trained(policy, tmp_path / "other")
    with pytest.raises(ConfigError, match="none was evaluated"):
        find_model(tmp_path / "other", checkpoint="best")
