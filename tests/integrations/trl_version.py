"""One version of TRL, whose folder is first on the path: `python trl_version.py FOLDER`.

Prints what was found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import trl
from integrations.trl_runs import Gradients, GRPOTrainer, config, handed_over, trainer, weights

from rlobj.integrations.trl import ObjectiveTrainer
from rlobj.integrations.trl.settings import TABLE

FOLDER = Path(sys.argv[1])


def gradient(objective: str, size: int, **settings: Any) -> torch.Tensor:
    """The gradients of two updates of 16 responses, in micro-batches of this size."""
    found = Gradients()
    split = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 16 // size}
    args = config(FOLDER, **{**split, "max_steps": 2, **settings})
    trainer(ObjectiveTrainer, args, objective=objective, callbacks=[found], record=False).train()
    return torch.cat(found.found)


def same_to_the_bit(**settings: Any) -> bool:
    """Whether `dapo-loss` gives TRL's own weights after two updates of 16 responses."""
    args = {"epsilon_high": 0.28, "loss_type": "dapo", "gradient_accumulation_steps": 2}
    args |= {"max_steps": 2, **settings}
    theirs = trainer(GRPOTrainer, config(FOLDER, **args))
    theirs.train()
    ours = trainer(ObjectiveTrainer, config(FOLDER, **args), objective="dapo-loss", record=False)
    ours.train()
    return torch.equal(weights(theirs), weights(ours))


def difference(objective: str, **settings: Any) -> float:
    """The largest difference of gradients in two sizes of micro-batches, relative to them."""
    whole, parts = (gradient(objective, size, **settings) for size in (16, 4))
    return float((whole - parts).abs().max() / whole.abs().max())


def evaluated() -> float:
    """The loss of an evaluation."""
    args = config(FOLDER, per_device_eval_batch_size=8, max_steps=1)
    one = trainer(ObjectiveTrainer, args, objective="stapo", record=False)
    return one.evaluate(one.train_dataset.select(range(4)))["eval_loss"]


found = {
    "version": trl.__version__,
    "dapo": same_to_the_bit(),
    "dapo, two rounds": same_to_the_bit(num_iterations=2),
    "20-entropy": difference("20-entropy"),
    "entropy bonus": difference("gdpo"),
    "evaluated": evaluated(),
    "handed over": handed_over() == TABLE["passed"],
}
print(json.dumps(found))
