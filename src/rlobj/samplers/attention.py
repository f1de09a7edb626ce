"""Attention for one new token whose query heads read shared keys in place, on a CPU.

If there is a mask, transformers' SDPA copies all keys and values for each query head. Models keep
"sdpa" in their configuration: some of them, such as Falcon, compute otherwise under another name.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_usual: Any = ALL_ATTENTION_FUNCTIONS["sdpa"]
_sampling = threading.local()


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """As transformers' SDPA, for one masked query without a copy: query [B, heads, 1, D]."""
    drawing = getattr(_sampling, "now", False) and query.device.type == "cpu"
    shared = query.shape[1] > key.shape[1] and query.shape[2] == 1
    masked = attention_mask is not None and options.get("position_bias") is None
    if not (drawing and shared and masked):
        return _usual(module, query, key, value, attention_mask, **options)
    scale = options.get("scaling")
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register("sdpa", attention)


@contextlib.contextmanager
def shared_heads() -> Iterator[None]:
    """Inside, SDPA in this thread is `attention`; elsewhere it stays as it is."""
    before, _sampling.now = getattr(_sampling, "now", False), True
    try:
        yield
    finally:
        _sampling.now = before
