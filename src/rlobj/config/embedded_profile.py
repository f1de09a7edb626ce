"""Settings that fit a run to the embedded policy instead of the paper's models.

A profile is a partial RunConfig. It sets sizes, lengths, learning rates and the reward. The
objective and the other settings of a preset do not change.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "EMBEDDED_PROFILE",
    "MOST_UPDATES",
    "OWN_PROBLEMS_PROFILE",
    "PROFILES",
    "SCRATCH_PROFILE",
]

EMBEDDED_PROFILE: dict[str, Any] = {
    "data": {"source": "addition"},
    "rewards": {"kind": "exact"},
    "sampling": {"prompts_per_step": 32, "group_size": 8, "max_tokens": 5},
    "training": {
        "steps": 100,
        "learning_rate": 5e-4,
        "warmup_steps": 10,
        "schedule": "linear",
        "betas": (0.9, 0.95),
    },
    "evaluation": {"every": 25, "samples": 4},
}
"""The default: RL on `addition` from the prepared policy, about a minute on one CPU thread."""

SCRATCH_PROFILE: dict[str, Any] = {
    **EMBEDDED_PROFILE,
    "data": {"source": "max-digits"},
    "sampling": {**EMBEDDED_PROFILE["sampling"], "max_tokens": 1},
    "training": {**EMBEDDED_PROFILE["training"], "learning_rate": 2e-3, "schedule": "constant"},
    "evaluation": {"every": 0},
}
"""RL on `max-digits` from random weights, in seconds: the smallest run that shows learning."""

OWN_PROBLEMS_PROFILE: dict[str, Any] = {
    **EMBEDDED_PROFILE,
    "data": {"template": "{prompt}"},
    "sampling": {**EMBEDDED_PROFILE["sampling"], "max_tokens": 16},
}
"""RL on a user's own problems from the policy of `addition`: the question alone is the prompt."""

MOST_UPDATES = 2
"""Largest number of updates per rollout: two are enough for ratios other than 1, and a rollout of
the embedded policy has too little data for more. An on-policy preset stays on-policy."""

PROFILES = {profile["data"]["source"]: profile for profile in (EMBEDDED_PROFILE, SCRATCH_PROFILE)}
"""The profile of each task that has an embedded policy."""
