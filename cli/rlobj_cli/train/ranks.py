"""Several processes: the first one prints, and one command starts them all."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer
from rich.console import Console


def first() -> bool:
    """Whether this process is the one that prints."""
    return os.environ.get("RANK", "0") == "0"


def console() -> Console:
    """A console that prints in the first process only."""
    return Console(quiet=not first())


def start_others(processes: int | None, more: Sequence[str] = ()) -> None:
    """Run this command in several processes, and exit with their exit code.

    Args:
        processes: how many; with one or None nothing happens.
        more: options that are added to those of this command.
    """
    if processes is None or processes == 1:
        return
    from rlobj.training.parallel.launcher import launch

    code = launch([*sys.argv[1:], *more], processes)
    raise typer.Exit(code)
