"""Options of commands."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

VARIABLE = "RLOBJ_DATA_DIR"


def option(panel: str | None, usage: str, help: str, **more: Any) -> Any:
    """An option in a panel of the help, with its names and its value: `--model -m FOLDER|ID`."""
    names = [word for word in usage.split() if word.startswith("-")]
    metavar = " ".join(usage.split()[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=panel, **more)


def data_dir_option(panel: str | None = None) -> Any:
    """The option, in a panel of a command's help.

    While the command runs, the folder is also in the environment, for this process and for the
    processes that it starts.
    """
    help = "Folder with aime24.jsonl, gsm8k.parquet and so on, to use instead of the hub."
    checks: Any = {"envvar": VARIABLE, "callback": _named, "exists": True, "file_okay": False}
    return option(panel, "--data-dir DIR", help, **checks)


def _named(ctx: typer.Context, folder: Path | None) -> Path | None:
    if folder is not None:
        before = dict(os.environ)
        os.environ[VARIABLE] = str(folder)
        ctx.call_on_close(lambda: (os.environ.clear(), os.environ.update(before)))
    return folder
