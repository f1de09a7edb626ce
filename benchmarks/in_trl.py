"""TRL's GRPOTrainer as benchmarks run it: on the CPU, in float32, without reports and files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rlobj.base.targets import import_target


def make_trainer(
    kind: Any, policy: str, out: Path, settings: Mapping[str, Any], **arguments: Any
) -> Any:
    """A trainer for a policy's folder.

    Args:
        kind: GRPOTrainer, or a class of it.
        policy: folder with model and tokenizer.
        out: folder of the run.
        settings: of GRPOConfig, beside those that all benchmarks share.
        arguments: of the trainer.
    """
    from transformers import AutoTokenizer, PrinterCallback
    from trl.trainer.grpo_config import GRPOConfig

    shared: dict[str, Any] = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    shared |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    trainer = kind(
        model=load_policy(policy),
        processing_class=AutoTokenizer.from_pretrained(policy),
        args=GRPOConfig(output_dir=str(out), **shared, **settings),
        **arguments,
    )
    trainer.remove_callback(PrinterCallback)  # it prints every step's log
    return trainer


def load_policy(folder: str) -> Any:
    """The policy in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def batches(rows: int, responses: int, group: int, longest: int) -> dict[str, int]:
    """Settings of a rollout whose one update is made of micro-batches of `rows` responses."""
    return {
        "per_device_train_batch_size": rows,
        "gradient_accumulation_steps": responses // rows,
        "num_generations": group,
        "max_completion_length": longest,
    }


def reward_function(target: str, graded: Callable[[], None] = lambda: None) -> Any:
    """A reward of (response, answer) as TRL calls it; `graded` is called after each rollout."""
    function: Callable[..., float] = import_target(target)

    def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> list[float]:
        rewards = [function(*pair) for pair in zip(completions, answer, strict=True)]
        graded()
        return rewards

    return reward


def flat_gradient(model: Any) -> torch.Tensor:
    """The gradients of all parameters in one vector, float64."""
    found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(found).double()
