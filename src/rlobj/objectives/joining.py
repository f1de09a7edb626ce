"""Columns of a TokenBatch: those of a user's own, of several tables joined, and padded ones.

The rewards of a TokenBatch: [B], or [B, K] for K rewards with names and weights.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlobj.base.errors import BatchError, nearest

if TYPE_CHECKING:
    from torch import Tensor


MAX_LOGPROB = 1e-3
"""Nats; a log-prob above 0 and up to this one is rounding."""
_NO_NUMBERS = (TypeError, ValueError, RuntimeError, OverflowError)
"""What torch raises for a value that is not a table of numbers."""
_BY_RESPONSE = ("lengths", "groups", "ids", "rewards", "mask")


def read_column(name: str, value: Any, device: torch.device | None = None) -> torch.Tensor:
    """A column as a tensor.

    Args:
        name: the column.
        value: a tensor, an array or a list.
        device: of the tensor; None = that of the value.

    Raises:
        BatchError: an entry is not a number, or has another size than the one before it.
    """
    rows = value.tolist() if isinstance(value, np.ndarray) else value
    for given in (value, rows):  # torch refuses some layouts and types of numpy
        try:
            return torch.as_tensor(given, device=device)
        except _NO_NUMBERS:
            if isinstance(value, torch.Tensor):
                raise
    for row, entry in enumerate(rows if isinstance(rows, list | tuple) else ()):
        try:
            torch.as_tensor([rows[0], entry])
        except _NO_NUMBERS:
            expected = "expected a number, or as many numbers as in the row before"
            padded = isinstance(entry, list | tuple)
            unit = "response" if padded or name in _BY_RESPONSE else "row"
            raise BatchError(
                f"column '{name}' is {entry!r:.60} at {unit} {row}; {expected}"
            ) from None
    raise BatchError(f"column '{name}' is {rows!r:.60}; expected a tensor or a list of numbers")


def per_reward(name: str, value: Any) -> tuple[Any, ...]:
    """The names or the weights of several rewards.

    Raises:
        BatchError: the value is not a list of names, or of numbers.
    """
    names = name == "reward_names"
    values = value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value
    if isinstance(values, list | tuple):
        texts = all(isinstance(each, str) for each in values)
        if texts if names else read_column(name, values).dim() == 1:
            return tuple(values)
    what = "name" if names else "number"
    raise BatchError(f"{name} is {value!r:.60}; expected a list with one {what} for each reward")


def whole_numbers(name: str, values: torch.Tensor) -> torch.Tensor:
    """A column of integers, int64.

    Raises:
        BatchError: a value is not a whole number.
    """
    if values.dtype == torch.int64:
        return values
    hardly_compared = (torch.uint16, torch.uint32, torch.uint64)
    values = values.long() if values.dtype in hardly_compared else values
    wrong = values[values.long() != values]
    if len(wrong):
        row = (values.long() != values).nonzero()[0].tolist()
        unit = "response" if name in _BY_RESPONSE else "row"
        raise BatchError(f"column '{name}' must hold integers, got {wrong[0]} at {unit} {row[0]}")
    return values.long()


def trained_positions(mask: Any) -> torch.Tensor:
    """A mask of trained positions as booleans, in its own shape.

    Raises:
        BatchError: a value is neither 0 nor 1.
    """
    given = read_column("mask", mask)
    trained = given.bool()
    if (wrong := trained != given).any():
        place = wrong.nonzero()[0].tolist()
        names = ("response", "position")[-len(place) :]
        where = ", ".join(f"{each} {i}" for each, i in zip(names, place, strict=False))
        raise BatchError(
            f"mask is {given[tuple(place)].item()} at {where}; expected 1 at trained positions, "
            "else 0"
        )
    return trained


def rounded_logprobs(table: Any, names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Those columns that hold log-probs above 0, with 0 for what is rounding; the gradient stays.

    Args:
        table: a TokenBatch.
        names: its columns of log-probs.

    Raises:
        BatchError: a log-prob of a decided response is finite and above `MAX_LOGPROB`.
    """
    columns = {name: x for name in names if (x := getattr(table, name)) is not None}
    above = [(values > 0).any() for values in columns.values()]
    if not above or not torch.stack(above).any():
        return {}
    for name, values in columns.items():
        over = values > 1.000001 * MAX_LOGPROB  # float32 has no 1e-3
        wrong = over & values.isfinite() & table.decided
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise BatchError(
                f"column '{name}' is {values[row].item():g} at row {row} ({table.row(row)}); "
                f"expected log-probs, which are at most 0 (up to {MAX_LOGPROB:g} is rounding)"
            )
        columns[name] = torch.where((values > 0) & ~over, values - values.detach(), values)
    return columns


def joined_columns(
    tables: Sequence[Any], per_row: Iterable[str], shared: Iterable[str]
) -> dict[str, Any]:
    """The arguments of one TokenBatch with the responses of all tables, in order.

    Args:
        tables: TokenBatches.
        per_row: names of columns with one row per token or response.
        shared: names of attributes that are the same in all tables.

    Raises:
        BatchError: some tables lack a column that others have, or differ in a shared attribute.
    """

    def join(name: str, values: Sequence[Any]) -> Any:
        present = [value for value in values if value is not None]
        if present and len(present) < len(values):
            absent = [i for i, value in enumerate(values) if value is None]
            raise BatchError(f"column '{name}' is in some tables but absent in {absent}")
        return torch.cat(present) if present else None

    columns = {name: join(name, [getattr(table, name) for table in tables]) for name in per_row}
    own = dict.fromkeys(name for table in tables for name in table.columns)
    columns["columns"] = {name: join(name, [t.columns.get(name) for t in tables]) for name in own}
    for name in shared:
        columns[name] = getattr(tables[0], name)
        if any(getattr(table, name) != columns[name] for table in tables):
            raise BatchError(f"the tables differ in {name}; expected {columns[name]} in all")
    masks = [table.mask for table in tables if table.mask is not None]
    if len(masks) == len(tables) and len({mask.shape[1] for mask in masks}) == 1:
        columns["mask"] = torch.cat(masks)
    return columns


def mapping(columns: Any) -> Mapping[str, Any]:
    """Columns of a user's own, by name.

    Raises:
        BatchError: something else than a mapping with names.
    """
    if isinstance(columns, Mapping) and all(isinstance(name, str) for name in columns):
        return columns
    raise BatchError(f"columns is {columns!r:.60}; expected names: columns={{'stage': [...]}}")


def own_column(
    name: str, value: Any, logprobs: torch.Tensor, lengths: torch.Tensor, reserved: Collection[str]
) -> torch.Tensor:
    """A column of a user's own, one number per token, [N].

    Args:
        name: the column.
        value: [N], or [B].
        logprobs: [N].
        lengths: tokens of each response, [B].
        reserved: names of the TokenBatch's own columns.

    Raises:
        BatchError: another shape, or a name of the TokenBatch's own columns.
    """
    if name in reserved:
        raise BatchError(
            f"columns={{{name!r}: ...}}: a TokenBatch has a column of this name. Pass "
            f"TokenBatch({name}=...), or take another name"
        )
    value = read_column(name, value, logprobs.device)
    if value.is_complex():
        raise BatchError(f"column '{name}' must hold numbers, got {value.dtype}")
    if value.shape == lengths.shape != logprobs.shape:
        value = value.repeat_interleave(lengths)
    if value.shape != logprobs.shape:
        raise BatchError(
            f"column '{name}' has shape {list(value.shape)}, expected [{len(logprobs)}] (tokens) "
            f"or [{len(lengths)}] (responses)"
        )
    return full_precision(value, torch.float64)


def full_precision(values: torch.Tensor, otherwise: torch.dtype) -> torch.Tensor:
    """Floats of at least 32 bits, differentiable; integers and booleans as `otherwise`."""
    floating = values.dtype.is_floating_point
    return values.to(torch.promote_types(values.dtype, torch.float32) if floating else otherwise)


def ids_of(table: Any) -> torch.Tensor:
    """The ids of a table's responses, int [B]; without ids their positions."""
    return torch.arange(len(table.lengths)) if table.ids is None else table.ids


_REWARDS = ("rewards", "reward_names", "reward_weights")


def flat_columns(
    mask: torch.Tensor,
    columns: Mapping[str, Any],
    known: Collection[str],
    per_token: Collection[str],
) -> dict[str, Any]:
    """The arguments of a TokenBatch; see `TokenBatch.from_padded`.

    Args:
        mask: [B, T], non-zero at trained tokens.
        columns: [B, T], or a form in which the TokenBatch takes them.
        known: the names of all columns.
        per_token: the names of those that must be [B, T].

    Raises:
        BatchError: an unknown column, a wrong value or shape, or rewards without groups.
    """
    mask = trained_positions(mask)
    if mask.dim() != 2:
        raise BatchError(f"mask must be [B, T], got shape {list(mask.shape)}")
    if columns.get("rewards") is not None and columns.get("groups") is None:
        raise BatchError(
            "from_padded has rewards and no groups, which say what rewards are compared with. Pass "
            "groups=[...]: one number for each response, the same for the responses of a prompt"
        )
    flat: dict[str, Any] = {"groups": torch.zeros(len(mask), dtype=torch.int64)}
    for name, value in columns.items():
        if name not in known:
            raise BatchError(f"TokenBatch has no column '{name}'.{nearest(name, known)}")
        if name == "columns":  # columns of the caller's own, by name
            own = flat_columns(mask, mapping(value), {*value, "groups"}, ())
            flat[name] = {key: own.get(key) for key in value}  # the TokenBatch refuses None
            continue
        if value is None and name != "logprobs":
            continue
        if name in _REWARDS or isinstance(value, int):
            flat[name] = value
            continue
        value = read_column(name, value)
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


def check_rewards(
    rewards: Tensor | None, names: Sequence[str] | None, weights: Sequence[float] | None
) -> None:
    """Check the rewards of a table.

    Raises:
        BatchError: an infinite reward, a weight that is not a finite number, or the number of names
            or weights is not K.
    """
    if rewards is None:
        return
    if rewards.isinf().any():
        row = int(rewards.isinf().nonzero()[0][0])
        raise BatchError(f"column 'rewards' is infinite at response {row}; NaN = undecided")
    count = rewards.shape[1] if rewards.dim() == 2 else 1
    if not count:
        raise BatchError("column 'rewards' has shape [B, 0]; expected [B] or [B, K] with K >= 1")
    for what, values in (("reward_names", names), ("reward_weights", weights)):
        if values is not None and len(values) != count:
            raise BatchError(
                f"{what} has {len(values)} entries: {tuple(values)}; expected {count}, because "
                f"column 'rewards' has shape {list(rewards.shape)}"
            )
    if weights and not read_column("reward_weights", weights).isfinite().all():
        raise BatchError(f"reward_weights must be finite numbers, got {weights}")
    if names is not None and len(set(names)) < count:
        raise BatchError(f"reward_names must differ from each other, got {tuple(names)}")


def check_turns(table: Any) -> None:
    """Check the turns of a TokenBatch.

    Raises:
        BatchError: a turn is below 0 or below the one before it in the response, or the rewards of
            two tokens of a turn differ.
    """
    if table.turn is not None:
        earlier = torch.zeros_like(table.turn)
        earlier[1:] = torch.where(table.positions[1:] > 0, table.turn[:-1], 0)
        if (wrong := table.turn < earlier).any():
            row = int(wrong.nonzero()[0])
            raise BatchError(
                f"column 'turn' is {int(table.turn[row])} at row {row} ({table.row(row)}); "
                f"expected {int(earlier[row])} or more: turns count from 0 and do not decrease in "
                "a response"
            )
    if table.turn_reward is not None:
        first = table.turn_reward[table.turn_starts][table.turns]
        undecided = table.turn_reward.isnan() & first.isnan()
        if (wrong := (table.turn_reward != first) & ~undecided).any():
            row = int(wrong.nonzero()[0])
            raise BatchError(
                f"column 'turn_reward' is {table.turn_reward[row]:g} at row {row} "
                f"({table.row(row)}), and {first[row]:g} at the first token of its turn; expected "
                "one reward for all tokens of a turn"
            )


def total_reward(rewards: Tensor, weights: Sequence[float] | None) -> Tensor:
    """Σ_k w_k·R_k, [B]; NaN if any of the rewards is NaN.

    One reward without a weight is returned as it is; a sum is float64.

    Args:
        rewards: [B] or [B, K].
        weights: w, K numbers; None = 1 each.
    """
    if rewards.dim() == 1 and weights is None:
        return rewards
    columns = rewards.double().unbind(1) if rewards.dim() == 2 else (rewards.double(),)
    weights = (1.0,) * len(columns) if weights is None else weights
    terms = [weight * column for weight, column in zip(weights, columns, strict=True)]
    return sum(terms[1:], start=terms[0])


def check_sign(rewards: Tensor, groups: Tensor, parts: Tensor, names: Sequence[str] = ()) -> None:
    """Check that no reward is below 0, but for rounding.

    Args:
        rewards: R, [B]; NaN = undecided.
        groups: int [B].
        parts: the rewards that R is made of, [B] or [B, K].
        names: of the K rewards, for the message.

    Raises:
        BatchError: a reward is below 0; names the response, its group and its rewards.
    """
    for row in (rewards < -1e-9).nonzero().flatten().tolist():
        each = zip(names, parts[row].flatten().tolist(), strict=False)
        found = ", ".join(f"{name} {reward:g}" for name, reward in each)
        raise BatchError(
            f"column 'rewards' is {rewards[row].item():g} at response {row} of group "
            f"{int(groups[row])}{found and f' ({found})'}; expected 0 or more: division by a mean "
            "below 0 trains against the better responses. Give 1 and 0, not 1 and -1, without "
            "penalties (rewards.overlong, reward_kl), or use advantage: group_centered"
        )


def named_reward(rewards: Tensor, names: Sequence[str] | None, name: str) -> Tensor:
    """The reward with this name, [B].

    Raises:
        BatchError: there is none; the message lists the known names.
    """
    if names is None and not len(rewards):
        return rewards.reshape(0)  # a rank without responses need not know the names
    if name not in (names or ()):
        advice = nearest(name, names) if names else " Pass TokenBatch(reward_names=...)"
        raise BatchError(f"the TokenBatch has no reward '{name}'.{advice}")
    return rewards if rewards.dim() == 1 else rewards[:, (names or ()).index(name)]


def rounding(dtype: torch.dtype) -> float:
    """The relative size of a difference between rewards of this precision that is rounding."""
    return 1e-9 if dtype == torch.float64 else 4 * torch.finfo(torch.float32).eps


def merged_rewards(rewards: Tensor, groups: Tensor | None = None, rounding: float = 1e-9) -> Tensor:
    """Rewards in which values that differ only by rounding are equal, such as 0.3 and 0.1 + 0.2.

    A reward that exceeds the next smaller one of its group by at most `rounding` of its size (or by
    1e-12) gets the value of that one.

    Args:
        rewards: [b], ascending in each group, none of them NaN.
        groups: the group of each reward, ascending, int [b]; None = one group.
        rounding: see the function of this name.
    """
    same = torch.isclose(rewards[1:], rewards[:-1], rtol=rounding, atol=1e-12)
    if groups is not None:
        same &= groups[1:] == groups[:-1]
    places = torch.arange(len(rewards), device=rewards.device)
    places[1:].masked_fill_(same, 0)
    return rewards[places.cummax(0).values] if len(rewards) else rewards


def differ(rewards: Tensor, rounding: float = 1e-9) -> bool:
    """Whether decided rewards differ by more than rounding, so that a group of them has a signal.

    Args:
        rewards: [b]; NaN = undecided.
        rounding: see the function of this name.
    """
    known = rewards[~rewards.isnan()].sort().values
    return len(merged_rewards(known, rounding=rounding).unique()) > 1
