"""Options and arguments that several commands have, and what options set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlobj.config.layers import Layer

DATA_DIR = "RLOBJ_DATA_DIR"
"""The variable of the environment that names the folder with problems."""

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Folders of runs, finished or not.")
]
PresetOrFile = Annotated[
    str, typer.Argument(metavar="PRESET_OR_FILE", help="Name of a preset, or a YAML file.")
]
Evaluation = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of an evaluation.")]
Step = Annotated[int | None, typer.Option("--step", metavar="N", min=1, help="Only this step.")]
Json = Annotated[bool, typer.Option("--json", help="Print everything as JSON, for other programs.")]
TrustFile = Annotated[
    bool, typer.Option("--trust", help="Import the code that a file names by its path.")
]


def setting_layers(options: Mapping[str, tuple[str, Any]]) -> list[Layer]:
    """The options that are given, as layers with their names.

    Args:
        options: for each option the setting that it sets, and the value, None if it is not given.
    """
    from rlobj.config.layers import nested

    given = [(option, *each) for option, each in options.items() if each[1] is not None]
    return [(option, nested(setting, value)) for option, setting, value in given]


def completed(incomplete: str) -> list[tuple[str, str]]:
    """The settings whose dotted names begin so, ready for a value, each with its meaning."""
    from rlobj.config.run_config import setting_meanings

    known = setting_meanings().items()
    return [(f"{name}=", text) for name, text in known if name.startswith(incomplete)]


def name_data_dir(ctx: typer.Context, folder: Path | None) -> Path | None:
    """Name the folder in the environment while the command runs, for it and what it starts."""
    if folder is not None:
        before = dict(os.environ)
        os.environ[DATA_DIR] = str(folder.absolute())
        ctx.call_on_close(lambda: (os.environ.clear(), os.environ.update(before)))
    return folder
