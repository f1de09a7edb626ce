"""Trainings in TRL on a CPU: a tiny policy with random weights, completions that are given."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Qwen3ForCausalLM, TrainerCallback

vllm = sys.modules.setdefault("vllm", None)  # type: ignore[arg-type]  # TRL imports it: 10 s
from benchmarks.embedded_policy import build_policy, build_tokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from rlobj import Objective, TokenBatch  # noqa: E402
from rlobj.integrations.trl import ObjectiveMixin, ObjectiveTrainer  # noqa: E402

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
            parameter.mul_(4.8)
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


def trainer(kind: type[GRPOTrainer], args: GRPOConfig, model: Any = None, **named: Any) -> Any:
    """A trainer of this kind on the tiny policy."""
    data = Dataset.from_dict({"prompt": PROMPTS})
    named = {"reward_funcs": reward, "rollout_func": completions, "train_dataset": data, **named}
    model = policy() if model is None else model
    if args.beta:  # TRL loads the reference from here
        model.save_pretrained(args.output_dir)
        model.config._name_or_path = args.output_dir
    return kind(
        model,
        args=args,
        processing_class=build_tokenizer(),
        **named,
    )


def handed_over() -> list[str]:
    """The inputs of a model, besides ids and masks, that TRL's loss gives its forward pass."""
    text = inspect.getsource(GRPOTrainer._compute_loss)
    found = re.findall(r"(\w+)=inputs.get\(\"\1\"\)", text)
    return [name for name in found if name != "importance_sampling_ratio"]  # of its loss


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


def gradients(kind: Any, args: GRPOConfig, model: Any = None, **named: Any) -> list[torch.Tensor]:
    """The gradient of each update of a training."""
    found = Gradients()
    trainer(kind, args, model, callbacks=[found], **named).train()
    return found.found


def changed(kind: Any, change: Any, method: str = "_generate_and_score_completions") -> Any:
    """A trainer of this kind, a method of which returns `change` of what it would return."""

    def own(self: Any, *arguments: Any) -> Any:
        return change(getattr(super(made, self), method)(*arguments))

    made = type("Changed", (kind,), {method: own})
    return made


def behind(kind: Any) -> Any:
    """An objective in front of a trainer of somebody's own."""
    return type("Behind", (ObjectiveMixin, kind), {})


def taken(output: Any, rows: torch.Tensor) -> Any:
    """These rows of all tensors of a rollout."""
    return {n: v[rows] if getattr(v, "ndim", 0) else v for n, v in output.items()}


def planned(one: Any) -> list[Any]:
    """Train; the windows that were planned."""
    seen, plan = [], one._plan
    one._plan = lambda window: (seen.append(window), plan(window))
    one.train()
    return seen


class Watched(ObjectiveTrainer):
    """Keeps the inputs and the weights of each update."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.updates: list[tuple[Any, Mapping[str, torch.Tensor]]] = []

    def _open_window(self) -> Any:
        window = super()._open_window()
        self.updates.append((window, {k: v.clone() for k, v in self.model.state_dict().items()}))
        return window


def train(
    folder: Path, objective: Any, advantages: str = "objective", model: Any = None, **settings: Any
) -> tuple[Watched, list[torch.Tensor]]:
    """Train an objective; the trainer, and the gradient of each update.

    Settings that are not of GRPOConfig are arguments of the trainer.
    """
    names = ("reward_funcs", "rollout_func", "peft_config", "eval_dataset", "selection")
    named = {name: settings.pop(name) for name in names if name in settings}
    found = Gradients()
    args = config(folder, **settings)
    named |= {"objective": objective, "advantages": advantages, "callbacks": [found]}
    named["record"] = False
    one = trainer(Watched, args, model, **named)
    one.train()
    return one, found.found


def alone(trainer: Watched, update: int, objective: Objective, *, own: bool = True) -> torch.Tensor:
    """The gradient of an update by rlobj alone: one table, one response per forward pass.

    Args:
        trainer: after the training.
        update: its number, from 0.
        objective: without phases.
        own: advantages are computed from the rewards of this update, else they are TRL's.
    """
    window, weights = trainer.updates[update]
    model = policy()
    model.load_state_dict(weights)
    rows = [row for inputs in window.inputs for row in _rows(model, inputs, trainer.temperature)]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    per_token = ("logprobs", "entropy", "old_logprobs", "ref_logprobs", "sampler_logprobs")
    joined: dict[str, Any] = {
        name: (torch.cat if name in per_token else torch.stack)(values)
        for name, values in columns.items()
    }
    joined |= {"advantages": None} if own else {}
    table = TokenBatch(lengths=[len(row["logprobs"]) for row in rows], **joined)
    state = {**objective.observe([table]), "update": update}
    objective.loss(table, objective.plan([table], state)).loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]).double()


def _rows(model: Any, inputs: Any, temperature: float) -> Any:
    """The columns of each response of TRL's inputs."""
    optional = {
        "old_logprobs": "old_per_token_logps",
        "ref_logprobs": "ref_per_token_logps",
        "sampler_logprobs": "sampling_per_token_logps",
    }
    for i, completed in enumerate(inputs["completion_mask"].bool()):
        prompt = inputs["prompt_ids"][i][inputs["prompt_mask"][i].bool()]
        tokens = inputs["completion_ids"][i][completed]
        logits = model(torch.cat([prompt, tokens])[None]).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        kept = (inputs.get("tool_mask", inputs["completion_mask"])[i][completed]).bool()
        taken = {
            name: inputs[key][i][completed][kept] for name, key in optional.items() if key in inputs
        }
        yield {
            "logprobs": logprobs.gather(-1, tokens[:, None])[:, 0][kept],
            "entropy": -(logprobs.exp() * logprobs).sum(-1)[kept],
            "groups": inputs["rlobj_groups"][i],
            "ids": inputs["rlobj_ids"][i],
            "rewards": inputs["rlobj_rewards"][i],
            "advantages": inputs["advantages"][i],
            **taken,
        }


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative to the largest value."""
    return float((found - expected).abs().max() / expected.abs().max())
