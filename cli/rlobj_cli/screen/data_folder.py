"""`--data-dir`: a folder with data files that are used instead of the hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

VARIABLE = "RLOBJ_DATA_DIR"


def data_dir_option(panel: str | None = None) -> Any:
    """The option, in a panel of a command's help.

    While the command runs, the folder is also in the environment, for this process and for the
    processes that it starts.
    """
    return typer.Option(
        "--data-dir",
        metavar="DIR",
        envvar=VARIABLE,
        callback=_named,
        help="Folder with aime24.jsonl, gsm8k.parquet and so on, to use instead of the hub.",
        rich_help_panel=panel,
    )


def _named(ctx: typer.Context, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    folder = folder.expanduser()
    if not folder.is_dir():
        there = folder.exists()
        raise typer.BadParameter(f"{folder} is a file." if there else f"no such folder: {folder}")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    ctx.call_on_close(lambda: _restore(before))
    return folder


def _restore(before: str | None) -> None:
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before
