"""Consoles that tests read."""

from __future__ import annotations

import io

from rich.console import Console
from typer.testing import CliRunner

from rlobj_cli.app import app


def console(width: int = 80, *, terminal: bool = False) -> Console:
    """A console that keeps what it prints, without colours."""
    return Console(
        file=io.StringIO(),
        width=width,
        height=30,
        force_terminal=terminal,
        force_interactive=terminal,
        color_system=None,
    )


def text_of(screen: Console) -> str:
    """Everything that was printed."""
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def shows(part: object, text: str) -> bool:
    """Whether a text contains a part, wherever its lines are wrapped."""
    return "".join(str(part).split()) in "".join(text.split())


def printed(*words: object, code: int = 0, columns: int = 80) -> str:
    """What `rlobj WORDS` prints in this process, if it ends with this code."""
    runner = CliRunner(env={"COLUMNS": str(columns), "TERM": "dumb"})
    result = runner.invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.output
