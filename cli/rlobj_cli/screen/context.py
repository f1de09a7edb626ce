"""Tokens in their context, for the screen. Their text is data: nothing in it is interpreted."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from rlobj.reporting import visible

LONGEST = 24
"""Cells of a marked token; a longer one is cut."""
_STYLES = {"dropped": "bold red", "masked": "bold red", "untouched": "bold"}
"""Style of the marked token by its effect; all other effects are yellow."""


def style_of(effect: str) -> str:
    """The style of a token by what happened to it."""
    return _STYLES.get(effect, "bold yellow")


def in_context(rows: Sequence[Mapping[str, Any]], width: int) -> list[Text]:
    """Lines of at most `width` cells: what stands before a token, the token in [ ], what follows.

    The tokens stand below each other, so that the eye finds them.

    Args:
        rows: each with `before`, `text`, `after` and `effect`.
        width: in cells.
    """
    marked = [f"[{beginning(row['text'], min(LONGEST, max(width - 2, 1)))}]" for row in rows]
    ends = [[cell_len(visible(row[name][:width])) for row in rows] for name in ("before", "after")]
    left, right = (max(lengths, default=0) for lengths in ends)
    room = max(width - max(map(cell_len, marked), default=0), 0)
    if left + right > room:
        left = min(left, max(room - right, room // 2))
    return [
        Text.assemble(
            end(row["before"], left),
            (mark, style_of(row["effect"])),
            beginning(row["after"], width - left - cell_len(mark)),
        )
        for row, mark in zip(rows, marked, strict=True)
    ]


def beginning(text: str, width: int) -> str:
    """The beginning of a text in at most `width` cells, without control characters."""
    text = visible(text[: max(width, 0) + 1])
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def end(text: str, width: int) -> str:
    """The end of a text in exactly `width` cells, without control characters."""
    text = visible(text[-width - 1 :])
    if cell_len(text) > width:
        while cell_len(text) >= width and text:
            text = text[1:]
        text = f"…{text}" if width else ""
    return " " * (width - cell_len(text)) + text
