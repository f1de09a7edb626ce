"""Curves drawn with characters: a sparkline of blocks, and a chart of braille dots with axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

_BLOCKS = "▁▂▃▄▅▆▇█"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a braille character: two columns of four dots, from the top."""

Points = Sequence[tuple[float, float]]


def resample(values: Sequence[float], width: int) -> list[float]:
    """Reduce the values to at most `width` numbers, means of neighbours."""
    count = min(len(values), width)
    cuts = [i * len(values) // count for i in range(count + 1)] if count else [0]
    parts = [values[a:b] for a, b in itertools.pairwise(cuts)]
    return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the values in one line, scaled from the smallest to the largest.

    Example:
        >>> sparkline([0, 1, 2, 3], 8)
        '▁▃▅█'
    """
    values = resample(values, width)
    if not values:
        return ""
    low, span = min(values), max(values) - min(values)
    return "".join(_BLOCKS[round((v - low) / span * 7) if span else 0] for v in values)


def draw_chart(
    console: Console, curve: Points, marks: Points = (), *, width: int, height: int
) -> None:
    """Print a curve over steps with its scale, and below it the first and the last step.

    Args:
        console: where to print.
        curve: (step, value) in order; long curves are resampled.
        marks: (step, value) of single points, shown as ●.
        width: of the curve, characters.
        height: of the curve, rows; at least 2.
    """
    xs, ys = (resample(values, 2 * width) for values in zip(*curve, strict=True))
    line = list(zip(xs, ys, strict=True))
    values = [value for _, value in (*line, *marks)]
    for value, row in chart(line, marks, width, height):
        label = "" if value is None else scale_label(value, max(values) - min(values))
        body = Text(row, "cyan")
        body.highlight_regex("●", "bold yellow")
        console.print(Text(f"{label:>8} ┤", "dim") + body, no_wrap=True)
    steps = [step for step, _ in (*curve, *marks)]
    console.print(Text(f"{'':10}{steps_axis(min(steps), max(steps), width)}", "dim"))


def chart(curve: Points, marks: Points, width: int, height: int) -> list[tuple[float | None, str]]:
    """Draw a curve in braille dots, and single points as ● over it, on common axes.

    Args:
        curve: (x, y) in order of x; drawn as a connected line.
        marks: (x, y).
        width: characters in a row.
        height: rows, at least 2.

    Returns:
        (y, characters) of each row from the top; y is known for the first and the last row, or for
        the middle row if all values are equal, and None for the others.
    """
    ys = [y for _, y in (*curve, *marks)]
    xs = [x for x, _ in (*curve, *marks)]
    low, high = min(ys), max(ys)
    first, x_span = min(xs), (max(xs) - min(xs)) or 1

    def dot(x: float, y: float) -> tuple[int, int]:
        """Column from the left and row from the top."""
        column = round((x - first) / x_span * (2 * width - 1))
        share = (high - y) / (high - low) if high > low else 0.5
        return column, round(share * (4 * height - 1))

    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for column, row in (dot(x, y) for x, y in curve):
        start = before or (column, row)
        length = max(abs(column - start[0]), abs(row - start[1]), 1)
        for i in range(length + 1):
            x = round(start[0] + (column - start[0]) * i / length)
            y = round(start[1] + (row - start[1]) * i / length)
            cells[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
        before = (column, row)
    rows = [[chr(0x2800 + cell) if cell else " " for cell in line] for line in cells]
    for column, row in (dot(x, y) for x, y in marks):
        rows[row // 4][column // 2] = "●"
    labels: list[float | None] = [None] * height
    for y in (high, low):
        labels[dot(first, y)[1] // 4] = y
    return [(label, "".join(row)) for label, row in zip(labels, rows, strict=True)]


def scale_label(value: float, span: float) -> str:
    """Format a value on an axis with enough digits for an axis of that span.

    Example:
        >>> scale_label(0.99985, 0.0003), scale_label(12345.6, 8000), scale_label(0.5, 0.4)
        ('0.999850', '12,346', '0.500')
    """
    digits = 2 - math.floor(math.log10(span or abs(value) or 1))
    return f"{value:,.{min(max(digits, 0), 6)}f}"


def steps_axis(first: float, last: float, width: int) -> str:
    """The line below a chart: its first and its last step."""
    end = f"{last:,.0f}"
    return f"step {first:,.0f}".ljust(width - len(end)) + end
