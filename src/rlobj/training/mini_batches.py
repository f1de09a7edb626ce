"""A rollout in as many parts as it has updates: the same groups on any number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlobj.statistics import Comm
from rlobj.training.agreement import largest
from rlobj.training.rollout import Rollout

__all__ = ["average", "mini_batches"]


def mini_batches(rollout: Rollout, updates: int, comm: Comm) -> list[list[int]]:
    """This rank's responses in each mini-batch of whole groups.

    The groups of all ranks, in the order of their ids, are cut into `updates` parts as equal as
    they can be. A rank may have none of a part's; a part that is empty everywhere is left out.
    """
    groups: dict[int, list[int]] = {}
    for i, response in enumerate(rollout.responses):
        groups.setdefault(response.group, []).append(i)
    ids = int(largest(max(groups, default=-1), comm)) + 1
    present = torch.zeros(ids, dtype=torch.int64)
    present[list(groups)] = 1
    place = comm.sum(present).cumsum(0) - 1  # among the groups of all ranks
    total = int(place[-1]) + 1 if ids else 0
    size, extra = divmod(total, updates)
    sizes = [size + (part < extra) for part in range(updates)]
    parts, start = [], 0
    for length in filter(None, sizes):
        inside = [group for group in sorted(groups) if start <= int(place[group]) < start + length]
        parts.append([i for group in inside for i in groups[group]])
        start += length
    return parts


def average(every: Sequence[dict[str, float]]) -> dict[str, float]:
    """One step's metrics of its updates': means, but sums of counts and largest of extremes."""
    names = dict.fromkeys(name for metrics in every for name in metrics)
    return {name: _average(name, every) for name in names}


def _average(name: str, every: Sequence[dict[str, float]]) -> float:
    values = [metrics[name] for metrics in every if name in metrics]
    if name in ("train/skipped_updates", "objective/dropped_tokens", "time/planning"):
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)
