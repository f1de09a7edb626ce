"""What is compared: the objectives of presets, and changes of one of their parts.

Only the objective differs between conditions. The recipe of a preset (batch, learning rate, dynamic
sampling, length penalty) is replaced by that of the study.
"""

from __future__ import annotations

from typing import Any

from rlobj import AdaptiveGate, Clip, Gate, Objective, load_preset

BASE = "dapo-loss"
"""The condition that all others are compared with."""
TAU = 0.02
"""The study's threshold of STAPO, from `rlobj replay --sweep` on runs of the base; see the plan."""
TARGETS = (0.05, 0.1, 0.2)
"""Targets of STARE's gate in nats, inside the range that runs of the base pass through."""

POSITIVE, RARE, CERTAIN = "(advantage > 0)", "(prob < 0.002)", "entropy.bottom(0.8)"
STAPO = f"{POSITIVE} & {RARE} & {CERTAIN}"
CHOSEN = f"{POSITIVE} & (prob < {TAU}) & {CERTAIN}"


GATES = {
    **{f"gate {target:g}": Gate(target=target, on=1.1, off=1.0) for target in TARGETS},
    **{
        f"adaptive gate {target:g}": AdaptiveGate(target=target, start=1.1, low=1.0, high=1.5)
        for target in TARGETS[:2]
    },
    **{
        f"gate 0.1, weight {weight:g}": Gate(target=0.1, on=weight, off=1.0)
        for weight in (2.0, 4.0)
    },
}
"""STARE's gates: with the numbers of its paper at each target, and with larger weights."""


GROUPS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "core": {
        **{name: (name, {}) for name in (BASE, "grpo", "20-entropy", "stapo", "stare", "lp-reg")},
        "random": ("stapo", {"drop": f"{POSITIVE}.sample(({STAPO}).count())"}),
    },
    "chosen threshold": {
        "stapo*": ("stapo", {"drop": CHOSEN}),
        "random*": ("stapo", {"drop": f"{POSITIVE}.sample(({CHOSEN}).count())"}),
    },
    "clip": {
        "lp-reg, clip of dapo-loss": (
            "lp-reg",
            {
                "surrogate": load_preset("lp-reg").objective.surrogate.model_copy(
                    update={"otherwise": Clip(low=0.2, high=0.28)}
                )
            },
        ),
    },
    "band": {name: ("stare", {"controllers": {"W": gate}}) for name, gate in GATES.items()},
    "presets": {
        name: (name, {})
        for name in (
            *("justrl", "ar", "lopti", "ar-lopti", "gspo", "sapo", "cispo", "clip-cov", "kl-cov"),
        )
    },
    "without": {
        "stapo, any advantage": ("stapo", {"drop": f"{RARE} & {CERTAIN}"}),
        "stapo, any probability": ("stapo", {"drop": f"{POSITIVE} & {CERTAIN}"}),
        "stapo, any entropy": ("stapo", {"drop": f"{POSITIVE} & {RARE}"}),
    },
}
"""Group -> name of a condition -> its preset, and the fields of the objective that it replaces."""

CONDITIONS = {name: made for group in GROUPS.values() for name, made in group.items()}


def objective(name: str) -> Objective:
    """The objective of a condition."""
    preset, changes = CONDITIONS[name]
    return load_preset(preset).objective.but(**changes)
