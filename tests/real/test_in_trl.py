"""TRL's trainer on SmolLM2, with its own loss and with an objective."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.in_trl import batches, make_trainer
from datasets import Dataset
from integrations.trl_runs import GRPOTrainer, weights
from real.sums import EXAMPLES

from rlobj.integrations.trl import ObjectiveTrainer

PROMPTS = [f"{EXAMPLES}{a} + {b} =" for a in (53, 17) for b in (35, 58)]


def digits(completions: Sequence[str], **_: Any) -> list[float]:
    """The share of digits: hardly two are equal in a group."""
    return [sum(map(str.isdigit, text)) / (len(text) + 1) for text in completions]


def trained(kind: Any, policy: Path, out: Path, **arguments: Any) -> torch.Tensor:
    """The weights after two updates of two prompts with four completions of six tokens."""
    trainer = make_trainer(
        kind,
        str(policy),
        out,
        {
            **batches(rows=4, responses=8, group=4, longest=6),
            "max_steps": 2,
            "learning_rate": 1e-5,
            "loss_type": "dapo",
            "epsilon_high": 0.28,
        },
        reward_funcs=digits,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        **arguments,
    )
    before = weights(trainer)
    trainer.train()
    after = weights(trainer)
    assert float((after - before).abs().max()) > 1e-5
    return after


@pytest.mark.slow
def test_dapo_is_trls_dapo_to_the_bit(smollm2: Path, scratch: Path) -> None:
    theirs = trained(GRPOTrainer, smollm2, scratch)
    ours = trained(ObjectiveTrainer, smollm2, scratch, objective="dapo-loss", record=False)
    assert torch.equal(theirs, ours)
