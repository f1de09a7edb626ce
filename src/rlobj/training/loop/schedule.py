"""The learning rate as a function of the step, so that it needs no place in a checkpoint."""

from __future__ import annotations

import math

from rlobj.config.run_config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step (from 0).

    Linear warm-up over `warmup_steps`, its last step at the peak; then constant, or down to 0 by
    the end of the run, linearly or along half a cosine.

    Example:
        >>> config = TrainingConfig(steps=10, learning_rate=1.0, warmup_steps=4, schedule="linear")
        >>> [round(learning_rate(config, step), 2) for step in (0, 3, 4, 7, 9)]
        [0.25, 1.0, 1.0, 0.5, 0.17]
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(config.steps - config.warmup_steps, 1)
    shape = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
    }[config.schedule]
    return config.learning_rate * shape
