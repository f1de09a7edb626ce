"""Padded [B, T] columns, as other trainers use them, turned into those of a TokenBatch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, nearest

_REWARDS = ("rewards", "reward_names", "reward_weights")


def flat_columns(
    mask: Tensor, columns: Mapping[str, Any], known: Collection[str], per_token: Collection[str]
) -> dict[str, Any]:
    """The arguments of a TokenBatch; see `TokenBatch.from_padded`.

    Args:
        mask: [B, T], non-zero at trained tokens.
        columns: [B, T], or a form in which the TokenBatch takes them.
        known: the names of all columns.
        per_token: the names of those that must be [B, T].

    Raises:
        BatchError: an unknown column, or a wrong shape.
    """
    mask = torch.as_tensor(mask).bool()
    if mask.dim() != 2:
        raise BatchError(f"mask must be [B, T], got shape {list(mask.shape)}")
    flat: dict[str, Any] = {"groups": torch.zeros(len(mask), dtype=torch.int64)}
    for name, value in columns.items():
        if name not in known:
            raise BatchError(f"TokenBatch has no column '{name}'.{nearest(name, known)}")
        if name == "columns":  # columns of the caller's own, by name
            names = {*value, "groups"}
            own = flat_columns(mask, value, names, ())
            flat[name] = {key: own[key] for key in value}
            continue
        if name in _REWARDS or isinstance(value, int) or value is None:
            flat[name] = value
            continue
        value = torch.as_tensor(value)
        if value.shape == mask.shape:
            flat[name] = value[mask.to(value.device)]
            flat["_spread"] = flat.get("_spread", False) or name == "advantages"
        elif value.shape == mask.shape[:1] and name not in per_token:
            flat[name] = value
        else:
            raise BatchError(
                f"column '{name}' has shape {list(value.shape)}, expected "
                f"{list(mask.shape)} like the mask"
            )
    return {**flat, "lengths": mask.sum(1), "mask": mask}
