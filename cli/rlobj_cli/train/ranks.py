"""This process among the ranks of a run: who shows things, and who starts the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rich.console import Console

__all__ = ["console", "first", "start_others"]


def first() -> bool:
    """Is this the process that shows what goes on?"""
    return os.environ.get("RANK", "0") == "0"


def console() -> Console:
    """The screen; of the other ranks, nowhere."""
    return Console(quiet=not first())


def start_others(processes: int | None, more: Sequence[str] = ()) -> None:
    """Run this command again in so many processes and end as they do; nothing for one or none.

    Args:
        processes: as asked for.
        more: options added to those of this command.
    """
    if processes is None or processes == 1:
        return
    from rlobj.training.parallel.launcher import launch

    code = launch([*sys.argv[1:], *more], processes)
    raise typer.Exit(code)
