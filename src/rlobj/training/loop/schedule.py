"""The learning rate as a function of the step, so that it needs no place in a checkpoint."""

from __future__ import annotations

import math

from rlobj.config.run_config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of a step (from 0).

    With peak p, N steps, floor r = `min_lr_ratio`, and W = ceil(`warmup_ratio`·N) if that is set,
    else `warmup_steps`:

        step s < W   p·(s + 1)/W
        step s ≥ W   p·(r + (1 − r)·f(x)),   x = (s − W)/(N − W)
        f(x) =       1 − x for "linear", (1 + cos(πx))/2 for "cosine"; "constant": p

    Example:
        >>> config = TrainingConfig(steps=10, learning_rate=1.0, warmup_steps=4, schedule="linear")
        >>> [round(learning_rate(config, step), 2) for step in (0, 3, 4, 7, 9)]
        [0.25, 1.0, 1.0, 0.5, 0.17]
    """
    ratio, warmup, floor = config.warmup_ratio, config.warmup_steps, config.min_lr_ratio
    warmup = warmup if ratio is None else math.ceil(ratio * config.steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(config.steps - warmup, 1)
    shape = {
        "constant": 1.0,
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
    }[config.schedule]
    return config.learning_rate * (floor + (1 - floor) * shape)
