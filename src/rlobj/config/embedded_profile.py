"""Settings that fit a run to the embedded policy instead of the paper's models.

A profile is a partial RunConfig. It sets sizes, lengths, learning rates and the reward, and limits
updates per rollout and dynamic sampling. The objective and the other settings of a preset do not
change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlobj.data.tasks import TASKS

DEFAULT_TASK = "scratchpad"
"""The task of a run without a model: from the prepared policy, about a minute on a CPU."""

OWN_PROBLEMS_TASK = "addition"
"""The task whose policy learns a user's own problems: it reads digits, and answers directly."""

MOST_UPDATES = 2
"""Largest number of updates per rollout: two are enough for ratios other than 1, and a rollout of
the embedded policy has too little data for more. An on-policy preset stays on-policy."""


def _profile(task: str, max_tokens: int, every: int, **training: Any) -> dict[str, Any]:
    return {
        "data": {"source": task},
        "rewards": {"kind": "exact", "after": TASKS[task].answer_after},
        "sampling": {"prompts_per_step": 32, "group_size": 8, "max_tokens": max_tokens},
        "training": {"warmup_steps": 10, "schedule": "constant", **training},
        "evaluation": {"every": every, "samples": 4},
    }


PROFILES = {
    **{
        task: _profile(task, 10 * TASKS[task].operands, 20, steps=60, learning_rate=3e-4)
        for task in ("scratchpad", "scratchpad-3", "scratchpad-5")
    },
    "addition": _profile(
        "addition", 5, 25, steps=100, learning_rate=5e-4, schedule="linear", betas=(0.9, 0.95)
    ),
    "max-digits": _profile("max-digits", 1, 0, steps=100, learning_rate=2e-3, betas=(0.9, 0.95)),
}
"""The profile of each task that has an embedded policy. That of `max-digits` has random weights: it
is the smallest run that shows learning, in seconds."""

OWN_PROBLEMS_PROFILE: dict[str, Any] = {
    **PROFILES[OWN_PROBLEMS_TASK],
    "data": {"template": "{prompt}"},
    "sampling": {**PROFILES[OWN_PROBLEMS_TASK]["sampling"], "max_tokens": 16},
}
"""RL on a user's own problems: the question alone is the prompt."""

_WHOLE_BATCHES = {"whole_batches": False, "oversampling": 1, "allow_fewer": False}
"""A task that the policy has learned has hardly any group with a signal, and the run goes on."""


def limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a profile limits in the recipe of a preset.

    Args:
        settings: of the preset, by dotted path.
    """
    found: dict[str, Any] = {}
    updates, passes = (settings.get(f"training.{x}", 1) for x in ("updates_per_step", "passes"))
    if isinstance(updates, int) and updates > MOST_UPDATES:
        found = {"training": {"updates_per_step": MOST_UPDATES}}
    if isinstance(passes, int) and isinstance(updates, int):  # what else it is, is refused later
        most = max(MOST_UPDATES // max(updates, 1), 1)
        if passes > most:
            found.setdefault("training", {})["passes"] = most
    if settings.get("sampling.dynamic.whole_batches"):
        found["sampling"] = {"dynamic": _WHOLE_BATCHES}
    return found
