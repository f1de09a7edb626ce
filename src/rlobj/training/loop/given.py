"""Given: parts of a run that a Python caller hands in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlobj.data import Problem
from rlobj.models.policy import Policy
from rlobj.rewards import Grader
from rlobj.samplers import Sampler


@dataclass(frozen=True)
class Given:
    """Parts of a run that are used instead of what the configuration would open.

    None = open this part from the configuration. All ranks must be given the same parts.

    Attributes:
        policy: the policy, with float32 weights and dropout off; it is trained in place.
        train_problems: the problems to train on.
        test_problems: the held-out problems; an empty list = no evaluation.
        grader: grades responses; the run enters and exits it.
        sampler: draws responses; the run does not close it.
    """

    policy: Policy | None = None
    train_problems: Sequence[Problem] | None = None
    test_problems: Sequence[Problem] | None = None
    grader: Grader | None = None
    sampler: Sampler | None = None
