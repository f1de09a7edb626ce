"""The rewards of a TokenBatch: their sum, and which of them are equal but for rounding.

They are [B], or [B, K] for K rewards with names and weights.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, nearest


def check_rewards(
    rewards: Tensor | None, names: Sequence[str] | None, weights: Sequence[float] | None
) -> None:
    """Check the rewards of a table.

    Raises:
        BatchError: an infinite reward, a weight that is not finite, or the number of names
            or weights is not K.
    """
    if rewards is None:
        return
    if rewards.isinf().any():
        raise BatchError("column 'rewards' has an infinite reward; NaN = undecided")
    count = rewards.shape[1] if rewards.dim() == 2 else 1
    for what, values in (("reward_names", names), ("reward_weights", weights)):
        if values is not None and len(values) != count:
            raise BatchError(f"{what} is {values}; expected {count}, one for each reward")
    if not all(map(math.isfinite, weights or ())):
        raise BatchError(f"reward_weights must be finite numbers, got {weights}")
    if names is not None and len(set(names)) < count:
        raise BatchError(f"reward_names must differ from each other, got {names}")


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


def check_sign(rewards: Tensor) -> None:
    """Check that no reward is below 0, but for rounding.

    Args:
        rewards: R, [B]; NaN = undecided.

    Raises:
        BatchError: a reward is below 0; names the response.
    """
    for row in (rewards < -1e-9).nonzero().flatten().tolist():
        raise BatchError(
            f"column 'rewards' is {rewards[row].item():g} at response {row}; expected 0 or more, "
            "as A divides by their mean. Use advantage: group_centered"
        )


def named_reward(rewards: Tensor, names: Sequence[str] | None, name: str) -> Tensor:
    """The reward with this name, [B].

    Raises:
        BatchError: there is none; the message lists the known names.
    """
    if names is None and not len(rewards):
        return rewards.reshape(0)  # a rank without responses need not know the names
    names = names or ()
    if name not in names:
        raise BatchError(f"reward_names has no reward '{name}'.{nearest(name, names)}")
    return rewards if rewards.dim() == 1 else rewards[:, names.index(name)]


def relative_rounding(dtype: torch.dtype) -> float:
    """The relative size of a difference between rewards of this precision that is rounding."""
    return 1e-9 if dtype == torch.float64 else 4 * torch.finfo(torch.float32).eps


def merged_rewards(rewards: Tensor, groups: Tensor | None = None, rounding: float = 1e-9) -> Tensor:
    """Rewards in which values that differ only by rounding are equal, such as 0.3 and 0.1 + 0.2.

    A reward that exceeds the next smaller one of its group by at most `rounding` of its size (or by
    1e-12) gets the value of that one.

    Args:
        rewards: [b], ascending in each group, none of them NaN.
        groups: the group of each reward, ascending, int [b]; None = one group.
        rounding: the relative size of a difference that is rounding; see `relative_rounding`.
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
        rounding: the relative size of a difference that is rounding; see `relative_rounding`.
    """
    decided = rewards[~rewards.isnan()].sort().values
    return len(merged_rewards(decided, rounding=rounding).unique()) > 1
