"""Consoles that tests read."""

from __future__ import annotations

import io

from rich.console import Console


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
