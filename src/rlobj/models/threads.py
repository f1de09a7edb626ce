"""How many threads torch computes a model with."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

SMALL = 1_000_000
"""Parameters below which a model has one thread on a CPU. On two idle cores, two threads train the
embedded policy (0.1 million) 1.2 times as fast by the clock, at 1.6 times the CPU seconds. They
train models of 0.5 to 135 million parameters 1.6 to 1.8 times as fast, and draw 1.3 to 1.6 times
as fast."""
_LOAD = 0.0 if "OMP_NUM_THREADS" in os.environ else getattr(os, "getloadavg", lambda: [0.0])()[0]
"""The load before our own work: this module is imported when a run or an evaluation begins."""


def parameters(model: Any) -> int:
    """The number of parameters of a module."""
    return sum(p.numel() for p in model.parameters())


def needs_one(model: Any) -> bool:
    """Whether a model is small, and computed on a CPU."""
    return parameters(model) < SMALL and not torch.cuda.is_available()


def usual_threads(model: Any) -> int:
    """One thread for a small model on a CPU, else those that torch has now; says if others use its
    cores, since threads that wait for each other draw a tenth as fast."""
    threads, cores = 1 if needs_one(model) else torch.get_num_threads(), os.cpu_count() or 1
    if threads > 1 and round(_LOAD) + threads > cores and not torch.cuda.is_available():
        logging.getLogger(__name__).warning(
            "The machine had a load of %.1f, and %d threads more are used on %d cores: this can be "
            "ten times slower than one. If that load goes on, type OMP_NUM_THREADS=1 in front.",
            *(_LOAD, threads, cores),
        )
    return threads
