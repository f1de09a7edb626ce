"""Curves drawn with characters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

_BLOCKS = "▁▂▃▄▅▆▇█"


def resample(values: Sequence[float], width: int) -> list[float]:
    """Reduce the values to at most `width` numbers, means of neighbours."""
    count = min(len(values), width)
    cuts = [i * len(values) // count for i in range(count + 1)] if count else [0]
    parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values in one line, scaled from the smallest to the largest.

    Example:
        >>> sparkline([0, 1, 2, 3], 8)
        '▁▃▅█'
    """
    values = resample(values, width)
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((v - low) / span * 7) if span else 0] for v in values)
