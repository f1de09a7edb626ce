"""What a launcher tells the processes that it starts, in variables of their environment."""

from __future__ import annotations

import os

PROGRESS = "RLOBJ_PROGRESS"
"""The variable with which a run tells its new processes where to show it: stdout, stderr, none."""


def first_process() -> bool:
    """Whether this is the first of the processes that a launcher has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def started_processes() -> int:
    """How many processes a launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))
