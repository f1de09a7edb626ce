"""Markdown of the tables of the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a header; its cells are texts of `cell` or `code`."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    """A text on one line, for a cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Code for a cell."""
    return f"`{cell(text)}`"


def block(language: str, text: str) -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"
