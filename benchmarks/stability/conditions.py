"""What is compared: the objectives of presets, and changes of one of their parts.

Only the objective differs between conditions. The recipe of a preset (batch, learning rate, dynamic
sampling, length penalty) is replaced by that of the study.

The group `clip` was added after four seeds of the core at the edge, where lp-reg collapsed in each:
it tells whether its wide clip or its protection of tokens is the cause. It is not a part of the
comparison that was planned.
"""

from __future__ import annotations

from typing import Any

from rlobj import Clip, Objective, load_preset

BASE = "dapo-loss"
"""The condition that all others are compared with, and the only one that regimes are chosen by."""

POSITIVE, RARE, CERTAIN = "(advantage > 0)", "(prob < 0.002)", "entropy.bottom(0.8)"
STAPO = f"{POSITIVE} & {RARE} & {CERTAIN}"

GROUPS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "core": {
        **{name: (name, {}) for name in (BASE, "grpo", "20-entropy", "stapo", "stare", "lp-reg")},
        "random": ("stapo", {"drop": f"{POSITIVE}.sample(({STAPO}).count())"}),
    },
    "presets": {
        name: (name, {})
        for name in (
            *("justrl", "ar", "lopti", "ar-lopti", "gspo", "sapo", "cispo", "clip-cov", "kl-cov"),
        )
    },
    "clip": {
        "dapo-loss, clip of lp-reg": ("dapo-loss", {"surrogate": Clip(low=1.0, high=9.0)}),
        "lp-reg, clip of dapo-loss": (
            "lp-reg",
            {
                "surrogate": load_preset("lp-reg").objective.surrogate.model_copy(
                    update={"otherwise": Clip(low=0.2, high=0.28)}
                )
            },
        ),
    },
    "without": {
        "stapo, any advantage": ("stapo", {"drop": f"{RARE} & {CERTAIN}"}),
        "stapo, any probability": ("stapo", {"drop": f"{POSITIVE} & {CERTAIN}"}),
        "stapo, any entropy": ("stapo", {"drop": f"{POSITIVE} & {RARE}"}),
    },
    "tau_p": {
        f"stapo, tau_p {tau}": ("stapo", {"drop": f"{POSITIVE} & (prob < {tau}) & {CERTAIN}"})
        for tau in (0.0005, 0.01, 0.05, 0.2)
    },
    "tau_h": {
        f"stapo, tau_h {tau}": (
            "stapo",
            {"drop": f"{POSITIVE} & {RARE} & entropy.bottom({tau})"},
        )
        for tau in (0.4, 0.6, 0.9)
    },
}
"""Group -> name of a condition -> its preset, and the fields of the objective that it replaces."""

CONDITIONS = {name: made for group in GROUPS.values() for name, made in group.items()}


def objective(name: str) -> Objective:
    """The objective of a condition."""
    preset, changes = CONDITIONS[name]
    return load_preset(preset).objective.but(**changes)
