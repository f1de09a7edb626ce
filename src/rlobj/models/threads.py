"""How many threads torch computes a model with."""

from __future__ import annotations

from typing import Any

import torch

SMALL = 10_000_000
"""Parameters below which a model is fastest on one thread of a CPU. On two cores, a second thread
helps from a hidden size of about 128 in training and of about 400 in drawing."""


def parameters(model: Any) -> int:
    """The number of parameters of a module."""
    return sum(p.numel() for p in model.parameters())


def fastest_on_one(model: Any) -> bool:
    """Whether a model is computed on a CPU, and is small."""
    return parameters(model) < SMALL and not torch.cuda.is_available()


def fastest_threads(model: Any) -> int:
    """One thread for a small model on a CPU, else those that torch has now."""
    return 1 if fastest_on_one(model) else torch.get_num_threads()
