"""One new token without a copy of all keys and values, which transformers makes twice.

On a CPU, query heads read shared keys in place: if there is a mask, transformers' SDPA copies all
keys and values for each query head. And a large cache has room for the tokens to come.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
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


LARGE = 2**22
"""Bytes of a layer's keys. To copy more of them takes longer than to write into a buffer."""


def give_room(cache: Any, longest: int) -> None:
    """Give a cache's large ordinary layers room for `longest` tokens; others stay as they are."""
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.keys is not None and layer.keys.nbytes >= LARGE:
            cache.layers[i] = RoomyLayer(layer, longest)


class RoomyLayer(DynamicLayer):
    """A layer of transformers' cache with room for tokens to come, which are written in place.

    The room grows by doubling. `DynamicLayer` copies all its keys and values for each new token,
    and whenever a row leaves.

    Args:
        layer: the layer to continue.
        longest: the largest number of tokens that will be needed.
    """

    keys: Any  # [B, heads, T, D], the part in use of a buffer [>= B, heads, >= T, D]
    values: Any

    def __init__(self, layer: DynamicLayer, longest: int) -> None:
        super().__init__()
        vars(self).update(vars(layer))  # what a layer has differs between versions
        self._longest = longest
        self._buffers = [self.keys, self.values]

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Add the keys and values of new tokens, and return all of them."""
        rows, _, used, _ = self.keys.shape
        end = used + key_states.shape[2]
        if end > self._buffers[0].shape[2]:
            size = max(end, min(2 * end, self._longest))
            for i, states in enumerate((self.keys, self.values)):
                self._buffers[i] = states.new_empty(*states.shape[:2], size, states.shape[3])
                self._buffers[i][:, :, :used] = states
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:rows, :, used:end] = states
        self.keys, self.values = (buffer[:rows, :, :end] for buffer in self._buffers)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Any) -> None:
        """Keep these rows, in this order; in place if rows only move to places that become free."""
        rows = len(beam_idx)
        moved = (beam_idx != torch.arange(rows, device=beam_idx.device)).nonzero()[:, 0]
        sources = beam_idx[moved]
        if rows <= len(self.keys) and bool((sources >= rows).all()):
            for states in (self.keys, self.values):
                states[moved] = states[sources]
            self.keys, self.values = self.keys[:rows], self.values[:rows]
        else:
            super().reorder_cache(beam_idx)
            self._buffers = [self.keys, self.values]

    batch_select_indices = reorder_cache  # pyright: ignore[reportAssignmentType]


JOINED = {DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, RoomyLayer}
"""Caches and layers that hold keys and values of rows, and nothing else."""


def joined(cache: Any, other: Any, width: int, longest: int) -> Any:
    """The cache with the rows of another one; None if it holds something else than keys and values.

    Args:
        cache: it is changed.
        other: of the same model.
        width: tokens of the longest sequence; shorter ones have room on the left.
        longest: the largest number of tokens that will be needed.
    """
    layers: Any = getattr(cache, "layers", ())
    if not {type(cache), *map(type, layers)} <= JOINED:
        return None
    for i, both in enumerate(zip(layers, other.layers, strict=True)):
        layer = both[0]
        size = min(width, max(each.keys.shape[2] for each in both))  # of a window: fewer
        layer.keys, layer.values = (
            torch.cat([pad(states, (0, 0, size - states.shape[2], 0)) for states in pair])
            for pair in ([each.keys for each in both], [each.values for each in both])
        )
        layer.cumulative_length = width  # of a window
        if isinstance(layer, RoomyLayer):
            layers[i] = RoomyLayer(layer, longest)
    return cache
