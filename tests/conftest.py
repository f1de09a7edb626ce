"""Settings for every test: one thread, and hypothesis without a clock or a random seed."""

from __future__ import annotations

import os
import sys

import torch
from hypothesis import HealthCheck, settings

if sys.version_info < (3, 12):  # setuptools fails to replace a distutils that somebody imported
    os.environ.setdefault("SETUPTOOLS_USE_DISTUTILS", "stdlib")
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
