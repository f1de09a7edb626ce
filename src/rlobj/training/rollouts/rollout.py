"""A rollout: the graded responses of a step, and which groups of them have a signal."""

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rlobj.objectives.rewards import differ
from rlobj.samplers import Response
from rlobj.settings.run_config import RunConfig

Seconds = defaultdict[str, float]
"""Seconds by purpose: `sample`; `grade` after sampling had ended; `hidden`, grading while sampling
went on."""


@dataclass(frozen=True)
class Rollout:
    """This rank's responses of one step.

    Attributes:
        responses: whole groups, one after another.
        dead: responses of the groups that dynamic sampling left out.
        batches: batches of prompts that dynamic sampling took (1 without it).
        seconds: time of this process by purpose.
        stream: the position of the problem stream after it.
        surplus: groups of all ranks with a signal that were left out: the step had enough.
    """

    responses: list[Response]
    dead: list[Response]
    batches: int
    seconds: Seconds
    stream: dict[str, Any]
    surplus: int = 0


def decouples(config: RunConfig) -> bool:
    """Whether each of several rewards has an advantage of its own."""
    return bool(config.rewards.names) and config.objective.advantage.decoupled


def has_signal(group: Sequence[Response], decoupled: bool) -> bool:
    """Whether the rewards of a group's decided responses differ.

    Args:
        group: its responses.
        decoupled: each of several rewards has an advantage of its own, and one that differs is
            enough.
    """
    decided = [r for r in group if not math.isnan(r.reward)]
    columns = [r.grade.rewards if decoupled else (r.reward,) for r in decided]
    return any(rewards_differ(frozenset(column)) for column in zip(*columns, strict=True))


@functools.lru_cache(1 << 12)
def rewards_differ(rewards: frozenset[float]) -> bool:
    """Whether decided rewards differ by more than rounding."""
    return differ(torch.tensor(list(rewards), dtype=torch.float64))
