"""Curves out of characters: a sparkline of blocks, and a chart of braille dots with its axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

__all__ = ["chart", "resample", "scale_label", "sparkline", "steps_axis"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character: two columns of four dots, from the top."""

Points = Sequence[tuple[float, float]]


def resample(values: Sequence[float], width: int) -> list[float]:
    """At most `width` numbers: means of neighbours."""
    count = min(len(values), width)
    cuts = [i * len(values) // count for i in range(count + 1)] if count else [0]
    parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float], width: int) -> str:
    """The course of the values in one line, from their least to their largest.

    Example:
        >>> sparkline([0, 1, 2, 3], 8)
        '▁▃▅█'
    """
    values = resample(values, width)
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((v - low) / span * 7) if span else 0] for v in values)


def chart(curve: Points, marks: Points, width: int, height: int) -> list[tuple[float | None, str]]:
    """A curve in braille dots, and single points as ● over it, on common axes.

    Args:
        curve: (x, y), x rising; drawn as a connected line.
        marks: (x, y).
        width: characters in a row.
        height: rows, at least 2.

    Returns:
        From the top, (the y that the row stands for, its characters); y is given for the first and
        the last row and None between.
    """
    ys = [y for _, y in (*curve, *marks)]
    xs = [x for x, _ in (*curve, *marks)]
    low, high = min(ys), max(ys)
    first, x_span, y_span = min(xs), (max(xs) - min(xs)) or 1, (high - low) or 1

    def place(x: float, y: float) -> tuple[int, int]:
        """Dot column from the left, dot row from the top."""
        column = round((x - first) / x_span * (2 * width - 1))
        return column, round((high - y) / y_span * (4 * height - 1))

    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for column, row in (place(x, y) for x, y in curve):
        start = before or (column, row)
        length = max(abs(column - start[0]), abs(row - start[1]), 1)
        for i in range(length + 1):
            x = round(start[0] + (column - start[0]) * i / length)
            y = round(start[1] + (row - start[1]) * i / length)
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = (column, row)
    rows = [[chr(0x2800 + cell) if cell else " " for cell in line] for line in cells]
    for column, row in (place(x, y) for x, y in marks):
        rows[row // 4][column // 2] = "●"
    labels = [high, *[None] * (height - 2), low]
    return [(label, "".join(row)) for label, row in zip(labels, rows, strict=True)]


def scale_label(value: float, span: float) -> str:
    """A value on an axis, with as many digits as tell it from others of that span.

    Example:
        >>> scale_label(0.99985, 0.0003), scale_label(12345.6, 8000), scale_label(0.5, 0.4)
        ('0.999850', '12,346', '0.500')
    """
    digits = 2 - math.floor(math.log10(span or abs(value) or 1))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def steps_axis(first: float, last: float, width: int) -> str:
    """What stands below a chart over steps: its ends."""
    end = f"{last:,.0f}"
    return f"step {first:,.0f}".ljust(width - len(end)) + end
