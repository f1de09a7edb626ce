"""LoRA through peft: the adapters are trained, and the model without them is the reference.

    W' = W + alpha/r · B·A        Hu et al. 2021, arXiv:2106.09685

Checkpoints are given W'; samplers too, or W once and the adapters after each update.
"""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError, MissingExtra, reported
from rlobj.settings.scores import Lora

_NAME = "default"
Full = Callable[[nn.Parameter], Tensor]
"""Gives one parameter whole, wherever its shards lie."""
Weights = Iterator[tuple[str, Tensor]]


def with_adapters(
    model: nn.Module, config: Lora, adapter: Path | None, setting: str = "model.lora"
) -> Any:
    """The model with frozen weights and adapters to train; new adapters do not change its output.

    Args:
        model: of transformers.
        config: the adapters.
        adapter: folder of trained ones; None = new ones.
        setting: that has them.

    Returns:
        A model of peft; of a trunk without a head, the trunk itself.

    Raises:
        MissingExtra: no peft.
        ConfigError: targets that the model does not have, or that are no linear layers; an adapter
            without all tensors.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "lora", "training low-rank adapters") from error
    if adapter is not None:
        with warnings.catch_warnings(), reported(ConfigError, f"'{adapter}'", UserWarning):
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
            return peft.PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    targets = config.targets if isinstance(config.targets, str) else list(config.targets)
    alpha: Any = config.alpha  # peft says int, and computes with any number
    settings = peft.LoraConfig(r=config.rank, lora_alpha=alpha, target_modules=targets)
    with reported(ConfigError, f"{setting}.targets={config.targets}", ValueError):
        if model.get_output_embeddings() is not None:  # type: ignore[operator]
            settings.task_type = "CAUSAL_LM"
            adapted: Any = peft.get_peft_model(model, settings)
        else:
            adapted = peft.inject_adapter_in_model(settings, model)
    if not all(isinstance(each.base_layer, nn.Linear) for _, each in _layers(adapted)):
        raise ConfigError(f"{setting}.targets={config.targets}: expected linear layers")
    return adapted


def without_adapters(model: Any) -> Any:
    """The transformers model, with or without adapters in it."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


@torch.no_grad()
def merged_weights(model: Any, full: Full, *, merged: bool = True) -> Weights:
    """(name, whole tensor) of the transformers model with merged adapters, and stored buffers.

    Args:
        model: with or without adapters.
        full: gives one parameter whole, wherever its shards lie.
        merged: False = without the adapters.
    """
    inner = without_adapters(model)
    layers = dict(_layers(inner))
    for name, parameter in inner.named_parameters():
        if ".lora_" in name:
            continue
        tensor = full(parameter)
        owner, adapted, leaf = name.rpartition(".base_layer.")
        if adapted:
            name = f"{owner}.{leaf}"
            if leaf == "weight" and merged:
                layer = layers[owner]
                low, high = full(layer.lora_A[_NAME].weight), full(layer.lora_B[_NAME].weight)
                tensor = tensor + layer.scaling[_NAME] * (high @ low)
        yield name, tensor
    stored = inner.state_dict().keys()
    yield from ((name, buffer) for name, buffer in inner.named_buffers() if name in stored)


@torch.no_grad()
def adapter_weights(model: Any, full: Full, *, scaled: bool = False) -> Weights:
    """(name in a peft checkpoint, whole tensor) of each adapter weight.

    Args:
        model: with adapters.
        full: gives one parameter whole, wherever its shards lie.
        scaled: multiply B by alpha/r, so that the update is B·A.
    """
    layers = dict(_layers(model))
    for name, parameter in model.named_parameters():
        owner, adapts, leaf = name.partition(".lora_")
        if adapts:
            factor = layers[owner].scaling[_NAME] if scaled and leaf[0] == "B" else 1
            yield name.replace(f".{_NAME}.", "."), factor * full(parameter)


def _layers(inner: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in inner.named_modules():
        if hasattr(module, "base_layer") and hasattr(module, "lora_A"):
            yield name, module
