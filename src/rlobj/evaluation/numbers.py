"""Numbers of evaluations as text."""

from __future__ import annotations

import math

UNKNOWN = "–"


def number(value: float, shares: bool, sign: str = "") -> str:
    """A share in percent with one decimal, or a reward; a dash if it is not finite.

    Args:
        value: the share or the reward.
        shares: it is a share.
        sign: "+" for a difference.
    """
    text = f"{100 * value:{sign}.1f}" if shares else f"{value:{sign}.3f}"
    return (text.replace("-", "−") if sign else text) if math.isfinite(value) else UNKNOWN


def number_range(low: float, high: float, shares: bool, sign: str = "") -> str:
    """Two numbers; a dash if they are not finite."""
    ends = (number(end, shares, sign) for end in (low, high))
    return " to ".join(ends) if math.isfinite(low) else UNKNOWN


def percent(value: float) -> str:
    """A share in percent with one decimal; a dash for nan."""
    return number(value, True)
