"""Consoles that tests read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import typer.main
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


def commands_below(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of all commands that are not groups of others."""
    for name, below in getattr(command, "commands", {}).items():
        if not below.hidden:  # another name of a command
            yield from commands_below(below, (*words, name))
    if not hasattr(command, "commands"):
        yield words


COMMANDS = [
    tuple(word for word in words if word != "<model>")  # which is typed as `eval MODEL`
    for words in commands_below(typer.main.get_command(app))
]
"""The words of all commands of the program."""
