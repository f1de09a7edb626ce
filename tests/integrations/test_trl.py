"""ObjectiveTrainer against TRL's own losses and against rlobj alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from integrations.trl_runs import Gradients, GRPOTrainer, config, trainer, weights

from rlobj.integrations.trl import ObjectiveTrainer


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("dapo-loss", {"epsilon_high": 0.28}),
        ("dapo-loss", {"epsilon_high": 0.28, "scale_rewards": "batch"}),
    ],
)
def test_dapo_is_trls_dapo_to_the_bit(
    tmp_path: Path, objective: str, settings: dict[str, Any]
) -> None:
    theirs = trainer(GRPOTrainer, config(tmp_path, **settings))
    theirs.train()
    ours = trainer(
        ObjectiveTrainer, config(tmp_path, **settings), objective=objective, advantages="trl"
    )
    before = weights(ours)
    ours.train()
    assert torch.equal(weights(theirs), weights(ours))
    assert not torch.equal(before, weights(ours))


def gradients(tmp_path: Path, objective: Any, size: int, **settings: Any) -> list[torch.Tensor]:
    found = Gradients()
    split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 32 // size}
    one = trainer(
        ObjectiveTrainer,
        config(tmp_path, **{**split, "max_steps": 1, **settings}),
        objective=objective,
        callbacks=[found],
    )
    one.train()
    return found.found


SELECTIONS = ("20-entropy", "stapo", "kl-cov", "stare", "clip-cov", "entropy-shaped", "fipo")


@pytest.mark.parametrize("preset", SELECTIONS)
def test_the_micro_batch_size_changes_nothing(tmp_path: Path, preset: str) -> None:
    whole, *parts = [gradients(tmp_path, preset, size) for size in (32, 8, 4, 1)]
    for part in parts:
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-5)
    assert whole[0].norm() > 0.01
