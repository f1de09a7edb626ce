"""What a launcher tells the processes that it starts, in variables of their environment."""

from __future__ import annotations

import os

PROGRESS = "RLOBJ_PROGRESS"
"""The variable with which `rlobj.train` says where its processes show the run: stderr, or none."""


def first_process() -> bool:
    """Whether this is the first of the processes that a launcher has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"
