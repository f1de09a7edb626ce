"""The heads of causal language models: the layer from the last hidden states to the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

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
    """The linear layer of a model's head.

    Raises:
        ConfigError: the head is not a linear layer, or an adapter wraps it.
    """
    head = model.get_output_embeddings()
    if getattr(type(head), "forward", None) is nn.Linear.forward:
        return head
    wrapped = " with an adapter; leave the head out of the adapter's targets"
    raise ConfigError(
        f"the head of {type(model).__name__} is a {type(head).__name__}"
        f"{wrapped if hasattr(head, 'base_layer') else ''}. Expected a torch linear layer."
    )


def trunk(model: Any) -> Any:
    """The part of a model that returns its last hidden states."""
    found = model.get_decoder()
    if found is model or isinstance(found, nn.Linear):  # Llama 4, ModernBERT
        return model.model
    return found
