"""The heads of causal language models: the layer from the last hidden states to the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rlobj.base.errors import ConfigError

SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
MULTIPLIERS = ("logit_scale", "lm_head_multiplier")
DIVISORS = ("logits_scaling", "logits_mup_width_multiplier")


@dataclass(frozen=True)
class LogitShape:
    """The logits of a model: softcap·tanh(scale·raw / softcap), or scale·raw."""

    scale: float
    softcap: float | None


def logit_shapes(config: Any) -> list[LogitShape]:
    """The shapes that a config can mean, the most likely first.

    Gemma 2 has a cap, Cohere and Granite have a scale. Granite divides by `logits_scaling`,
    HyperCLOVA X multiplies by it.
    """
    config = config.get_text_config()
    scale, divisor = 1.0, 1.0
    for name in MULTIPLIERS:
        scale *= getattr(config, name, None) or 1.0
    for name in DIVISORS:
        divisor *= getattr(config, name, None) or 1.0
    caps = [cap for name in SOFTCAPS if (cap := getattr(config, name, None))]
    cap = caps[0] if caps else None
    return [LogitShape(scale / divisor, cap), LogitShape(scale * divisor, cap)]


def linear_head(model: Any) -> nn.Linear:
    """The linear layer of a model's head, without LoRA adapters.

    Raises:
        ConfigError: the head is not a linear layer, or has adapters other than LoRA.
    """
    head = _layer_in_use(model.get_output_embeddings())
    base = getattr(head, "base_layer", head)
    if getattr(type(base), "forward", None) is not nn.Linear.forward:
        raise ConfigError(
            f"the head of {type(model).__name__} is a {type(base).__name__}; expected a torch "
            "linear layer, with or without LoRA."
        )
    if base is head:
        return base
    if not hasattr(head, "lora_A"):
        raise ConfigError(
            f"the head of {type(model).__name__} is wrapped in a {type(head).__name__}; of peft's "
            "adapters, scoring knows LoRA. Merge the adapter into the head, or exclude the head "
            "from it."
        )
    odd = [name for name in head.lora_A if getattr(head, "lora_variant", {}).get(name) is not None]
    odd += [name for name in head.lora_B if head.lora_B[name].bias is not None]
    if odd:
        raise ConfigError(
            f"adapter '{odd[0]}' on the head of {type(model).__name__} is a variant of LoRA or has "
            "a bias; scoring supports W + alpha/r·B·A only."
        )
    return base


def trunk(model: Any) -> Any:
    """The part of a model that returns its last hidden states."""
    found = model.get_decoder()
    if found is model or isinstance(found, nn.Linear):  # Llama 4, ModernBERT
        return model.model
    return found


def head_inputs(model: Any, hidden: Tensor) -> dict[str, Any]:
    """The arguments of `score_tokens` for a model's head: weight, bias, low_rank.

    LoRA on the head adds alpha/r·B·A·h to the raw logits. W + alpha/r·B·A is never computed, so a
    frozen W has no gradient.
    """
    head = _layer_in_use(model.get_output_embeddings())
    layer = getattr(head, "base_layer", head)
    sides = []
    if layer is not head and head.disable_adapters and head.merged:
        head.unmerge()  # as in its own forward
    if layer is not head and not (head.disable_adapters or head.merged):
        for name in head.active_adapters:
            if name in head.lora_A:
                low, high = head.lora_A[name], head.lora_B[name].weight
                dropped = head.lora_dropout[name](hidden.to(low.weight.dtype))
                sides.append((low(dropped) * head.scaling[name], high))
    low_rank = None
    if sides:
        lows, highs = zip(*sides, strict=True)
        low_rank = sides[0] if len(sides) == 1 else (torch.cat(lows, 1), torch.cat(highs, 1))
    return {"weight": layer.weight, "bias": layer.bias, "low_rank": low_rank}


def _layer_in_use(head: Any) -> Any:
    """The layer in use; peft may keep the original head beside a trained copy."""
    if not hasattr(head, "modules_to_save"):
        return head
    if head.disable_adapters or not head.active_adapters:
        return head.original_module
    return head.modules_to_save[head.active_adapters[0]]
