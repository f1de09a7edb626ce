"""How many threads torch computes a model with."""

from typing import Any

import torch

SMALL = 1_000_000
"""Parameters below which a model has one thread on a CPU. On two idle cores, two threads train the
embedded policy (0.1 million) 1.2 times as fast by the clock, at 1.6 times the CPU seconds. They
train models of 0.5 to 135 million parameters 1.6 to 1.8 times as fast, and draw 1.3 to 1.6 times
as fast."""


def parameters(model: Any) -> int:
    """The number of parameters of a module."""
    return sum(p.numel() for p in model.parameters())


def usual_threads(model: Any) -> int:
    """One thread for a small model on a CPU, else those that torch has now."""
    one = parameters(model) < SMALL and not torch.cuda.is_available()
    return 1 if one else torch.get_num_threads()
