"""Trainings in TRL on a CPU: a tiny policy with random weights, completions that are given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen3ForCausalLM, TrainerCallback

from rlobj.models.embedded import build_policy, build_tokenizer

vllm = sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]  # TRL imports it: 10 s
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

if vllm is None:
    del sys.modules["vllm"]

PROMPTS = [f"{a}+{b}=" for a in range(1, 9) for b in range(1, 9)]


def reward(completions: Sequence[str], **_: Any) -> list[float]:
    """Different rewards within most groups, the same ones in each run."""
    return [float(sum(map(ord, text)) % 3 == 0) for text in completions]


def completions(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """Completions that depend on the prompt and on its place in the group only."""
    tokenizer, found = trainer.processing_class, {}
    prompt_ids, completion_ids = [], []
    for prompt in prompts:
        number = found[prompt] = found.get(prompt, -1) + 1
        generator = torch.Generator().manual_seed(sum(map(ord, prompt)) * 101 + number)
        length = int(torch.randint(1, 9, (), generator=generator))
        tokens = torch.randint(5, len(tokenizer), (length,), generator=generator)
        prompt_ids.append(tokenizer(prompt)["input_ids"])
        completion_ids.append(tokens.tolist())
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def policy(seed: int = 0) -> Qwen3ForCausalLM:
    """The embedded architecture with random weights, sharp enough for small probabilities."""
    model = build_policy(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def config(folder: Path, **settings: Any) -> GRPOConfig:
    """Eight prompts with four completions each per update; settings override."""
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 3,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return GRPOConfig(str(folder), **{**usual, **settings})


def trainer(
    kind: Callable[..., GRPOTrainer], args: GRPOConfig, model: Any = None, **named: Any
) -> GRPOTrainer:
    """A trainer of this kind on the tiny policy."""
    named = {"reward_funcs": reward, "rollout_func": completions, **named}
    if kind is not GRPOTrainer:
        named = {"record": False, **named}
    model = policy() if model is None else model
    if args.beta:  # TRL loads the reference from here
        model.save_pretrained(args.output_dir)
        model.config._name_or_path = args.output_dir
    return kind(
        model,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=build_tokenizer(),
        **named,
    )


def weights(trainer: GRPOTrainer) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


class Gradients(TrainerCallback):
    """Keeps the gradient of each update."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, *_: Any, model: Any = None, **__: Any) -> None:
        """Store the gradient that the optimizer is about to use."""
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        self.found.append(torch.cat(parts).double())
