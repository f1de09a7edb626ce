"""Attention for one new token whose query heads read shared keys in place, on a CPU.

If there is a mask, transformers' SDPA copies all keys and values for each query head.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "rlobj_shared_heads"


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As transformers' SDPA, for one masked query without a copy: query [B, heads, 1, D]."""
    shared = query.shape[1] > key.shape[1] and query.shape[2] == 1
    masked = attention_mask is not None and options.get("position_bias") is None
    if not (shared and masked):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


@contextlib.contextmanager
def shared_heads(model: Any) -> Iterator[None]:
    """Inside, a model on a CPU that computes with SDPA computes with `attention`."""
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa" or model.device.type != "cpu":
        yield
        return
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"
