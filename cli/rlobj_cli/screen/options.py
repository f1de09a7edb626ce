"""Options of commands."""

from __future__ import annotations

from typing import Any

import typer

__all__ = ["option"]


def option(panel: str | None, names: str, metavar: str | None, help: str, **more: Any) -> Any:
    """An option in a panel of the help; names are separated by blanks."""
    return typer.Option(*names.split(), metavar=metavar, help=help, rich_help_panel=panel, **more)
