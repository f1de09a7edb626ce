"""The columns of a TokenBatch, read from tensors, arrays, lists and padded tensors."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from rlobj.base.errors import BatchError

_NO_NUMBERS = (TypeError, ValueError, RuntimeError, OverflowError)
"""What torch raises for a value that is not a table of numbers."""
_WHOLE = ("lengths", "groups", "ids", "rollouts", "staleness", "turn", "versions")


def read_column(name: str, value: Any, device: torch.device | None = None) -> torch.Tensor:
    """A column as a tensor.

    Args:
        name: the column.
        value: a tensor, an array or a list.
        device: of the tensor; None = that of the value.

    Raises:
        BatchError: it is no table of real numbers.
    """
    if not isinstance(value, torch.Tensor):
        try:  # torch refuses arrays whose rows do not follow one another
            value = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
            value = torch.as_tensor(value)
        except _NO_NUMBERS as error:
            raise BatchError(f"column '{name}' is {value!r:.60}, not numbers ({error})") from None
    if value.is_complex():
        raise BatchError(f"column '{name}' has complex numbers; expected real ones")
    return torch.as_tensor(value, device=device)


def numbers(name: str, value: Any, logprobs: torch.Tensor | None) -> torch.Tensor:
    """A column of numbers, in full precision or as int64.

    Args:
        name: the column.
        value: a tensor, an array or a list.
        logprobs: of the table, whose device and precision it gets; None = they are this column.

    Raises:
        BatchError: a value is no number, or not of the column's kind.
    """
    value = read_column(name, value, None if logprobs is None else logprobs.device)
    if logprobs is None and not value.is_floating_point():
        raise BatchError(f"column '{name}' must be float, got {value.dtype}")
    if name not in _WHOLE:
        return full_precision(value, torch.float32 if logprobs is None else logprobs.dtype)
    whole = value.long()
    if (wrong := whole != value.double()).any():
        raise BatchError(f"column '{name}' must hold integers, got {value[wrong][0]}")
    return whole


def trained_positions(mask: Any) -> torch.Tensor:
    """A mask of trained positions as booleans, in its own shape.

    Raises:
        BatchError: a value is neither 0 nor 1.
    """
    values = read_column("mask", mask)
    trained = values.bool()
    if (wrong := trained != values).any():
        raise BatchError(f"mask has {values[wrong][0]}; expected 1 at trained positions, else 0")
    return trained


def mapping(columns: Any) -> Mapping[str, Any]:
    """Columns of a user's own, by name; lists as arrays, whose floats are float64.

    Raises:
        BatchError: something else than a mapping with names.
    """
    if isinstance(columns, Mapping) and all(isinstance(name, str) for name in columns):
        lists = {k: np.asarray(v) for k, v in columns.items() if isinstance(v, list | tuple)}
        return {**columns, **lists}
    raise BatchError(f"columns is {columns!r:.60}; expected names: columns={{'stage': [...]}}")


def user_column(
    name: str,
    value: Any,
    logprobs: torch.Tensor,
    lengths: torch.Tensor,
    reserved: Collection[str],
    of_responses: bool,
) -> tuple[torch.Tensor, bool]:
    """A column of a user's own, and whether it has one number per response, [B], or per token, [N].

    Args:
        name: the column.
        value: [N], [B] or [B, 1]; if B = N, one dimension is read as [N].
        logprobs: [N].
        lengths: tokens of each response, [B].
        reserved: names of the TokenBatch's own columns.
        of_responses: one dimension is read as [B] if B = N.

    Raises:
        BatchError: another shape, or a name of the TokenBatch's own columns.
    """
    if name in reserved:
        raise BatchError(f"columns has '{name}', which is a column of its own: {name}=...")
    value = read_column(name, value, logprobs.device)
    if value.shape == (len(lengths), 1):
        value, of_responses = value[:, 0], True
    if value.shape not in (logprobs.shape, lengths.shape):
        expected = f"[{len(logprobs)}] (tokens) or [{len(lengths)}] (responses)"
        raise BatchError(f"column '{name}' has shape {list(value.shape)}, expected {expected}")
    of_responses = value.shape == lengths.shape and (of_responses or value.shape != logprobs.shape)
    return full_precision(value, torch.int64), of_responses


def full_precision(values: torch.Tensor, otherwise: torch.dtype) -> torch.Tensor:
    """Floats of at least 32 bits, differentiable; integers and booleans as `otherwise`."""
    floating = values.dtype.is_floating_point
    return values.to(torch.promote_types(values.dtype, torch.float32) if floating else otherwise)


_REWARDS = ("rewards", "reward_names", "reward_weights")


def flat_columns(
    mask: torch.Tensor,
    columns: Mapping[str, Any],
    per_token: Collection[str],
    spread: Collection[str] = (),
) -> dict[str, Any]:
    """The arguments of a TokenBatch; see `TokenBatch.from_padded`.

    Args:
        mask: [B, T], non-zero at trained tokens.
        columns: [B, T], or a form in which the TokenBatch takes them.
        per_token: the names of those that must be [B, T].
        spread: the names of those whose values per response, [B], go to their tokens.

    Raises:
        BatchError: a wrong value or shape, lengths, or rewards without groups.
    """
    mask = trained_positions(mask)
    if "lengths" in columns:
        raise BatchError("lengths follow from the mask: leave them out")
    if columns.get("rewards") is not None and columns.get("groups") is None:
        raise BatchError("rewards need groups=[...], the same number for a prompt's responses")
    flat: dict[str, Any] = {"groups": torch.zeros(len(mask), dtype=torch.int64)}
    for name, value in columns.items():
        if name == "columns":  # columns of the caller's own, by name
            users = flat_columns(mask, mapping(value), ())
            for key, column in value.items():  # the TokenBatch refuses None
                of_responses = column is not None and read_column(key, column).dim() == 1
                read = users[key][:, None] if of_responses else users.get(key)
                flat.setdefault(name, {})[key] = read
            continue
        if value is None and name != "logprobs":
            continue
        if name in _REWARDS or isinstance(value, int):
            flat[name] = value
            continue
        value = read_column(name, value)
        if value.shape == mask.shape:
            flat[name] = value[mask.to(value.device)]
        elif value.shape == mask.shape[:1] and name not in per_token:
            lengths = mask.sum(1).to(value.device)
            flat[name] = value.repeat_interleave(lengths) if name in spread else value
        else:
            shapes = f"{list(value.shape)}, expected {list(mask.shape)} like the mask"
            raise BatchError(f"column '{name}' has shape {shapes}")
    return {**flat, "lengths": mask.sum(1), "mask": mask}
