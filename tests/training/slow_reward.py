"""The reward of `hanging_worker.py`: its process imports no more than it needs."""

from __future__ import annotations

import os
import time
from typing import Any

SLOW = 0.8


def score(response: str, answer: str, **columns: Any) -> float:
    """Slow on one rank: its rollout of 16 responses takes longer than the limit."""
    time.sleep(SLOW if os.environ["RANK"] == "1" else 0)
    return float(response == answer)
