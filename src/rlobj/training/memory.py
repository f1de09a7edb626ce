"""The memory that a run needs on each GPU: weights, gradients, moments, copies, vLLM.

Activations are not counted. They depend on `training.micro_batch_tokens`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from rlobj.base.errors import ConfigError
from rlobj.config.run_config import LoraConfig, ModelConfig, RunConfig
from rlobj.config.scores import ScoreConfig
from rlobj.models.embedded import build_policy
from rlobj.models.location import score_folder
from rlobj.models.policy import score_dtype

GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    """The number of parameters of a model.

    Attributes:
        total: without adapters.
        adapters: of LoRA adapters of rank 1.
    """

    total: int
    adapters: int

    @classmethod
    def of(cls, model: Any, lora: LoraConfig | None) -> Size:
        """Count the parameters of a transformers model, on any device."""
        targets = "all-linear" if lora is None else lora.targets
        layers = [
            layer
            for name, layer in model.named_modules()
            if isinstance(layer, nn.Linear)
            and layer is not model.get_output_embeddings()
            and (targets == "all-linear" or name.rpartition(".")[2] in targets)
        ]
        total = sum(parameter.numel() for parameter in model.parameters())
        return cls(total, sum(layer.in_features + layer.out_features for layer in layers))

    @classmethod
    def named(cls, config: ModelConfig, *, local: bool = False) -> Size | None:
        """Count the parameters of the model that a configuration names, without its weights.

        Args:
            config: the model's settings.
            local: do not ask the hub for `config.json`.

        Returns:
            None if `config.json` cannot be read.
        """
        if config.name is None:
            return cls.of(build_policy(0), config.lora)
        from transformers import AutoConfig, AutoModelForCausalLM

        code = config.trust_remote_code
        try:
            found = AutoConfig.from_pretrained(
                config.name, trust_remote_code=code, local_files_only=local
            )
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(found, trust_remote_code=code)
        except (OSError, ValueError):
            return None
        return cls.of(model, config.lora)


@dataclass(frozen=True)
class Memory:
    """The memory of one process.

    Attributes:
        parts: (bytes while sampling, bytes in an update) of each part of a run.
        card: bytes of the GPU; None = there is none.
    """

    parts: Mapping[str, tuple[float, float]]
    card: int | None

    @property
    def needed(self) -> tuple[float, float]:
        """Bytes while sampling, and bytes in an update."""
        sampling, training = zip(*self.parts.values(), strict=True)
        return sum(sampling), sum(training)

    @property
    def fits(self) -> bool:
        """Whether the GPU has as much, or there is none."""
        return self.card is None or max(self.needed) <= self.card


def bytes_per_parameter(strategy: str, ranks: int) -> tuple[float, float]:
    """Bytes of a trained parameter in each process: while sampling, and in an update.

    ddp has weights and two moments of 4 bytes, and in an update gradients and temporary tensors;
    several processes keep their gradients. ZeRO has a second copy of the weights, which it updates.
    It shards that copy and the moments, in stage 2 also the gradients, and in stage 3, as fsdp2,
    everything.
    """
    return {
        "ddp": (12 if ranks == 1 else 16, 16.3),
        "zero1": (4 + 12 / ranks, 8 + 12 / ranks),
        "zero2": (4 + 12 / ranks, 4 + 16 / ranks),
        "zero3": (20 / ranks, 35 / ranks),
        "fsdp2": (20 / ranks, 35 / ranks),
    }[strategy]


def estimate(
    config: RunConfig, size: Size, strategy: str, ranks: int, card: int | None = None
) -> Memory:
    """Estimate the memory of each process of a run.

    Args:
        config: the run.
        size: of its model.
        strategy: a strategy other than "auto".
        ranks: number of processes, each with a GPU of its own.
        card: bytes of the GPU; None = there is none.
    """
    lora, sampling = config.model.lora, config.sampling
    sharded = strategy in ("zero3", "fsdp2")
    trained = size.total if lora is None else lora.rank * size.adapters
    low, high = (trained * each for each in bytes_per_parameter(strategy, ranks))
    parts = {"weights, gradients, moments": (low, high)}
    copy = (4.0 * size.total, 4.0 * size.total)
    if lora is not None:
        frozen = copy[0] / ranks if sharded else copy[0]
        parts = {"frozen weights": (frozen, frozen), "adapters": (low, high)}
    for name in sorted(config.objective.read_scores):
        score = config.scores.get(name, ScoreConfig())
        if kept := _score_bytes(score, config, size, trained) / (ranks if sharded else 1):
            parts["reference model" if score.required else f"score {name}"] = (kept, kept)
    if sampling.engine == "transformers" and (sharded or sampling.async_depth):
        parts["sampler's copy"] = copy
    if sampling.engine == "vllm":
        settings: Any = sampling.vllm.fitted()
        share: float = size.total * (4 if config.model.dtype == "float32" else 2)
        if settings.kv_cache_bytes == "auto":
            share = max(share, settings.gpu_memory_utilization * (card or 0))
        else:
            share += settings.kv_cache_bytes
        parts["vLLM"] = (share, share if settings.sleep_level == 0 else 0.0)
    return Memory(parts, card)


def _score_bytes(score: ScoreConfig, config: RunConfig, size: Size, trained: float) -> float:
    """Bytes that the weights of a score take on all ranks together, or on each without shards."""
    if score.is_policy:
        return 4.0 * trained if score.ema or score.every else 0.0
    if score.server or (score.required and config.model.lora is not None):
        return 0.0
    named = None
    if not score.required:
        named = Size.named(ModelConfig(name=score_folder("", score)))
    return float((named or size).total * score_dtype(score).itemsize)


def require_memory(
    config: RunConfig, size: Size, strategy: str, ranks: int, card: int | None
) -> None:
    """Check that a run can fit the GPU.

    Raises:
        ConfigError: it cannot; the message has changes with which it can.
    """
    memory = estimate(config, size, strategy, ranks, card)
    if card is None or memory.fits:
        return
    adapted = config.model.model_copy(update={"lora": LoraConfig()})
    lora = config.model_copy(update={"model": adapted})
    ways = {"set model.lora.rank=16": estimate(lora, size, strategy, ranks, card)}
    for count in (each for each in (2, 4, 8, 16, 32) if each >= ranks):
        way = f"set training.strategy=zero3, processes={count}"
        ways[way] = estimate(config, size, "zero3", count, card)
    fitting = [f"{way}: {_gib(each)}" for way, each in ways.items() if each.fits]
    raise ConfigError(
        f"the run cannot fit the GPU: a process needs {_gib(memory)} without activations, and the "
        f"GPU has {card / GIB:.1f} GiB. rlobj train --dry-run shows for what. It can fit with one "
        "of these:\n  "
        + "\n  ".join(fitting[:2] or ["a smaller model, or LoRA and zero3 over more processes"])
    )


def own_card() -> tuple[str, int] | None:
    """The name and the bytes of this process's GPU; None = there is none."""
    if not torch.cuda.is_available():
        return None
    index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
    card = torch.cuda.get_device_properties(index)
    return card.name, card.total_memory


def card_bytes() -> int | None:
    """The memory of this process's GPU; None = there is none."""
    card = own_card()
    return None if card is None else card[1]


def _gib(memory: Memory) -> str:
    return f"{max(memory.needed) / GIB:.1f} GiB"


@dataclass(frozen=True)
class Cards:
    """Equal GPUs: how many, and the bytes of each."""

    count: int
    bytes: int


@dataclass(frozen=True)
class Choice:
    """A value for a setting that was `auto`, and why."""

    setting: str
    value: Any
    reason: str


def choose(config: RunConfig, size: Size, cards: Cards) -> list[Choice]:
    """Stub."""
    return []
