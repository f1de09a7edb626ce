"""`rlobj watch`: follows a run in the terminal."""

from __future__ import annotations

from pathlib import Path

import typer

from rlobj_cli.screen.console import Screen, working
from rlobj_cli.screen.options import INTERRUPTED, report


def watch(run: Path, trust: bool = False) -> None:
    """Follow a run: its metrics, the time left, and what the diagnosis finds.

    It shows what rlobj train shows, from any other terminal, and reads only RUN/metrics.jsonl.
    In a pipe it prints plain lines. It waits for a run that is just starting, and ends with it.
    Ctrl-C ends the watching and leaves the run alone.

    [bold]Examples[/bold]

    \b  rlobj train --preset stapo --out runs/first > first.log &
      rlobj watch runs/first
      rlobj watch runs/first > progress.log

    [bold]Exit code[/bold]

    \b  0   the run made all its steps, or was stopped and saved
      1   the run failed, or its process was killed
      130 Ctrl-C
    """
    console = Screen()
    with working(console):
        from rlobj_cli.screen.following import follow
    try:
        code = follow(console, run, trust)
    except KeyboardInterrupt:
        report("Interrupted", f"only the watching; the run goes on. rlobj watch {run}")
        code = INTERRUPTED
    raise typer.Exit(code)
