"""Micro-batches of a forward pass: within the budget of memory, and with little padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlobj.scoring import micro_batches

__all__ = ["OVERHEAD", "cut"]

OVERHEAD = 256
"""What one more micro-batch costs, in tokens whose time it takes; at most a 16th of a full one."""


def cut(
    lengths: Sequence[int], budget: int, packed: bool, *, single: float = 0.0
) -> list[list[int]]:
    """Micro-batches within a budget of tokens, padding included.

    Padded sequences are sorted by length and cut where padded tokens and `OVERHEAD` for each
    micro-batch add up to the least, found by dynamic programming over the cuts. The fewest
    micro-batches (`scoring.micro_batches`) would be filled to the budget with lengths of all kinds.

    Args:
        lengths: tokens of each sequence.
        budget: padded tokens of a micro-batch; a longer sequence is alone.
        packed: sequences are laid one after another, and nothing is padding.
        single: padding that one micro-batch for all is worth, as a share of the real tokens.

    Example:
        >>> cut([9, 2, 9, 2, 2], 24, packed=False)
        [[0, 2], [1, 3, 4]]
    """
    fewest = micro_batches(lengths, budget, packed=packed)
    whole = len(lengths) * max(lengths, default=0)
    if packed or (len(fewest) < 2 and whole <= (1 + single) * sum(lengths)):
        return fewest
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    tokens = np.array([lengths[i] for i in order], dtype=np.float64)
    least = np.zeros(len(order) + 1)  # cost of the first so many
    starts = [0] * (len(order) + 1)  # where the last micro-batch among them begins
    first = 0  # it can begin no earlier
    for end in range(1, len(order) + 1):
        while end - first > 1 and (end - first) * tokens[first] > budget:
            first += 1
        padded = np.arange(end - first, 0, -1) * tokens[first:end]
        costs = least[first:end] + padded + min(OVERHEAD, budget / 16)
        place = int(costs.argmin())
        least[end], starts[end] = costs[place], first + place
    parts, end = [], len(order)
    while end:
        parts.append(order[starts[end] : end])
        end = starts[end]
    return parts[::-1]
