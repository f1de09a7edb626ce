"""transformers' cache without a copy of all keys and values at each new token."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

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
