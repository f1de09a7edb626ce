"""Which runs the study has: parts, each a question with its arms and seeds, and the comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stability.conditions import BASE, GATES, GROUPS

SEARCHED = (5e-4, 7.5e-4, 3.33e-4)
"""The learning rates of the search."""
RATES = {"static": 3.33e-4, "dynamic": 5e-4}
"""The learning rates that the search chose."""
BEYOND = 6e-4
"""Where dapo-loss collapsed with four updates per rollout in the first study."""
STEEPER = (7e-4, 8.5e-4, 1e-3)
"""Where dapo-loss is tried since it does not collapse there any more."""
COLLAPSE = 7e-4
"""The first learning rate of these at which it collapses."""
GOAL = 0.85
"""The held-out accuracy whose cost is compared."""
GROUP, PROMPTS, STEPS, DYNAMIC_STEPS = 8, 16, 300, 180
FACTOR = 2.33
"""Generated tokens of dynamic sampling / those of as many static steps, in the search."""

SAMPLING: dict[str, dict[str, Any]] = {
    "static": {},
    "dynamic": {"sampling.dynamic": {}},
    "more prompts": {"sampling.prompts_per_step": round(PROMPTS * FACTOR)},
    "more steps": {},
    "no refill": {"sampling.dynamic": {"max_batches": 1}},
}
"""Name -> the settings that decide which groups a step has."""
STEPS_OF = {
    "dynamic": DYNAMIC_STEPS,
    "more prompts": DYNAMIC_STEPS,
    "more steps": round(DYNAMIC_STEPS * FACTOR),
}


@dataclass(frozen=True)
class Arm:
    """What the runs of one line share: all but the seed.

    Attributes:
        condition: the objective, a name of `CONDITIONS`.
        sampling: a name of `SAMPLING`.
        rate: learning rate of AdamW.
        updates: optimizer updates per rollout.
        steps: rollouts.
    """

    condition: str
    sampling: str
    rate: float
    updates: int = 1
    steps: int = STEPS

    @classmethod
    def of(cls, condition: str, sampling: str) -> Arm:
        """An arm at the learning rate that the search chose for its sampling."""
        rate = RATES["static" if sampling in ("static", "more steps") else "dynamic"]
        return cls(condition, sampling, rate, steps=STEPS_OF.get(sampling, STEPS))

    def __str__(self) -> str:
        return f"{self.condition}, {self.sampling}, {self.rate:g}"

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings of a run, by dotted name."""
        return {
            "seed": seed,
            "sampling.prompts_per_step": PROMPTS,
            "sampling.group_size": GROUP,
            "training.steps": self.steps,
            "training.updates_per_step": self.updates,
            "training.learning_rate": self.rate,
            "training.warmup_steps": 10,
            "training.skip_inactive": False,
            "evaluation.every": 10,
            "evaluation.samples": 2,
            "checkpoint.every": 0,
            "output.samples_every": 0,
            "output.tables_every": 0,
            **SAMPLING[self.sampling],
        }


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
    more: Mapping[str, Any] = field(default_factory=dict)

    def runs(self) -> list[Run]:
        """All of them, seed by seed, so that pairs are complete early."""
        return [Run(self.name, arm, seed) for seed in self.seeds for arm in self.arms]


@dataclass(frozen=True)
class Run:
    """One training run; its folder is DIR/PART/ARM/SEED."""

    part: str
    arm: Arm
    seed: int

    def folder(self, runs: Path) -> Path:
        name = str(self.arm).replace(",", "").replace(" ", "_")
        return runs / self.part / name / str(self.seed)

    def settings(self) -> dict[str, Any]:
        return {**self.arm.settings(self.seed), **PARTS[self.part].more}


def strained(name: str, rate: float) -> Arm:
    """An arm with four updates per rollout."""
    return Arm(name, "static", rate, updates=4, steps=200)


STUDIED = (BASE, "stare", "stapo*", "random*")
STRAINED = (BASE, "grpo", "stapo*", "stare", "20-entropy", "lp-reg", *GROUPS["clip"])
SURVIVORS = tuple(name for name in STRAINED if name != "lp-reg")
"""Those that do not collapse at the first of the two rates."""
CONTROLS = ("more prompts", "more steps", "no refill")

PARTS = {
    part.name: part
    for part in (
        Part(
            "search",
            [Arm(BASE, how, rate) for rate in SEARCHED for how in RATES],
            (100, 101),
            {"evaluation.samples": 4, "output.tables_every": 20},
        ),
        Part("regime", [Arm.of(name, how) for how in RATES for name in STUDIED], range(6)),
        Part("controls", [Arm.of(BASE, how) for how in CONTROLS], range(5)),
        Part("beyond", [strained(name, BEYOND) for name in STRAINED], (0,)),
        Part("steeper", [strained(BASE, rate) for rate in STEEPER], (0,)),
        Part("collapse", [strained(name, COLLAPSE) for name in SURVIVORS], (1, 2, 3)),
        Part("band", [Arm.of(name, "static") for name in GROUPS["band"]], (0,)),
    )
}
"""The parts by name, in the order in which they are trained."""


@dataclass(frozen=True)
class Question:
    """A comparison of the family: arms against arms, in pairs; each pair is a stratum.

    Attributes:
        title: of its row.
        pairs: (part, arm) and the (part, arm) that it is compared with.
    """

    title: str
    pairs: Sequence[tuple[tuple[str, Arm], tuple[str, Arm]]]


def _regime(name: str, how: str) -> tuple[str, Arm]:
    return "regime", Arm.of(name, how)


FAMILY = [
    Question(
        "dynamic sampling / static",
        [(_regime(n, "dynamic"), _regime(n, "static")) for n in STUDIED],
    ),
    *(
        Question(f"{name} / {base}", [(_regime(name, how), _regime(base, how)) for how in RATES])
        for name, base in (("stare", BASE), ("stapo*", BASE), ("stapo*", "random*"))
    ),
    *(
        Question(
            f"dynamic sampling / {how}",
            [(_regime(BASE, "dynamic"), ("controls", Arm.of(BASE, how)))],
        )
        for how in CONTROLS
    ),
]
"""The primary comparisons; Holm's correction counts all of them."""


def gates(target: float) -> list[tuple[str, str]]:
    """Part and name of the gates with a target."""
    return [("band", name) for name, gate in GATES.items() if gate.target == target]
