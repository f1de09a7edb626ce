"""Settings for every test: one thread, and hypothesis without a clock or a random seed."""

from __future__ import annotations

import contextlib
import os

import torch
from hypothesis import HealthCheck, settings

with contextlib.suppress(ImportError):
    import setuptools  # noqa: F401  # before anybody imports distutils, which it wants to replace

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed prints that it guessed so
torch.set_num_threads(1)
settings.register_profile(
    "rlobj",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("rlobj")
