"""Options of commands."""

from __future__ import annotations

from typing import Any

import typer


def option(panel: str | None, usage: str, help: str, **more: Any) -> Any:
    """An option in a panel of the help, with its names and its value: `--model -m FOLDER|ID`."""
    names = [word for word in usage.split() if word.startswith("-")]
    metavar = " ".join(usage.split()[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)
