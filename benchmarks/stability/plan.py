"""Which runs the study has: parts, each with its arms and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj import Objective, load_preset

BASE = "dapo-loss"
"""The objective that all others are compared with."""
X = 5e-4
"""The learning rate in the middle of the search."""

OBJECTIVES: dict[str, tuple[str, dict[str, Any]]] = {BASE: (BASE, {})}
"""Name -> its preset, and the fields of the objective that it replaces."""

SAMPLING: dict[str, dict[str, Any]] = {"static": {}, "dynamic": {"sampling.dynamic": {}}}
"""Name -> the settings that decide which groups a step has."""


@dataclass(frozen=True)
class Arm:
    """What the runs of one line share: all but the seed.

    Attributes:
        objective: a name of `OBJECTIVES`.
        sampling: a name of `SAMPLING`.
        rate: learning rate of AdamW.
        updates: optimizer updates per rollout.
        steps: rollouts of 16 problems with 8 responses each.
    """

    objective: str
    sampling: str
    rate: float
    updates: int = 1
    steps: int = 300

    def __str__(self) -> str:
        return f"{self.objective} {self.sampling} {self.rate:g}"

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings of a run, by dotted name."""
        return {
            "seed": seed,
            "sampling.prompts_per_step": 16,
            "sampling.group_size": 8,
            "training.steps": self.steps,
            "training.updates_per_step": self.updates,
            "training.learning_rate": self.rate,
            "training.warmup_steps": 10,
            "evaluation.every": 10,
            "evaluation.samples": 4,
            "checkpoint.every": 0,
            "output.samples_every": 0,
            "output.tables_every": 0,
            **SAMPLING[self.sampling],
        }

    def loss(self) -> Objective:
        """Its objective."""
        preset, changes = OBJECTIVES[self.objective]
        return load_preset(preset).objective.but(**changes)


@dataclass(frozen=True)
class Part:
    """A question, and the runs that answer it.

    Attributes:
        name: of its folder.
        arms: what is compared.
        seeds: of each arm.
        more: settings of all its runs.
    """

    name: str
    arms: Sequence[Arm]
    seeds: Sequence[int]
    more: dict[str, Any]

    def runs(self) -> list[Run]:
        """All of them, seed by seed, so that pairs are complete early."""
        return [Run(self, arm, seed) for seed in self.seeds for arm in self.arms]


@dataclass(frozen=True)
class Run:
    """One training run; its folder is DIR/PART/ARM/SEED."""

    part: Part
    arm: Arm
    seed: int

    def folder(self, runs: Path) -> Path:
        return runs / self.part.name / str(self.arm).replace(" ", "_") / str(self.seed)

    def settings(self) -> dict[str, Any]:
        return self.arm.settings(self.seed) | self.part.more


SEARCH = Part(
    "search",
    [Arm(BASE, how, rate) for rate in (X, X * 1.5, round(X / 1.5, 6)) for how in SAMPLING],
    (100, 101),
    {"training.skip_inactive": False, "output.tables_every": 20},
)
"""Chooses a learning rate for each kind of sampling, and the threshold of STAPO."""

PARTS = [SEARCH]
