"""What replaces a paper's scale when the policy is the embedded one.

A profile is a partial RunConfig. It sets sizes, lengths, rates and the reward; the objective, and
what else a preset says about the method, stays as it is. Of a preset with several updates per
rollout it takes at most two, so that ratios leave 1; an on-policy preset stays on-policy.
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
"""The default: RL on `addition` from the warm-started policy, about a minute on one CPU thread."""

SCRATCH_PROFILE: dict[str, Any] = {
    "data": {"source": "max-digits"},
    "rewards": {"kind": "exact"},
    "sampling": {"prompts_per_step": 32, "group_size": 8, "max_tokens": 1},
    "training": {
        "steps": 100,
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "schedule": "constant",
        "betas": (0.9, 0.95),
    },
    "evaluation": {"every": 0},
}
"""RL on `max-digits` from random weights, in seconds: the smallest run that shows learning."""

OWN_PROBLEMS_PROFILE: dict[str, Any] = {
    **{key: value for key, value in EMBEDDED_PROFILE.items() if key != "data"},
    "data": {"template": "{prompt}"},
    "sampling": {**EMBEDDED_PROFILE["sampling"], "max_tokens": 16},
}
"""RL on a user's own problems from the policy of `addition`: the question alone is the prompt."""

MOST_UPDATES = 2
"""Updates per rollout at most: what a rollout of the embedded policy has data for."""

PROFILES = {profile["data"]["source"]: profile for profile in (EMBEDDED_PROFILE, SCRATCH_PROFILE)}
"""The profile of each task that has an embedded policy."""
