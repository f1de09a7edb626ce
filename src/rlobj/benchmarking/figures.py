"""Pictures of tables. matplotlib is an extra and is imported where one is drawn.

save(draw, table, file)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlobj.base.errors import MissingExtra
from rlobj.benchmarking.tables import Table

__all__ = ["COLOURS", "plain_ticks", "save", "tidy"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Eight colours that colour-blind readers tell apart (Okabe and Ito); ours is the first."""


def save(draw: Callable[[Any, Table], None], table: Table, file: Path) -> None:
    """Draw a table into a PNG file.

    Args:
        draw: puts the table on a matplotlib figure.
        table: what a benchmark measured.
        file: to write.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "bench", "drawing a figure") from error
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, table)
    figure.savefig(file, dpi=150)


def tidy(axis: Any) -> None:
    """Faint vertical and horizontal lines, no box around the picture."""
    axis.grid(True, color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_axisbelow(True)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def plain_ticks(axis: Any) -> None:
    """Numbers such as 0.5, 1, 2, 5, 10 on a logarithmic axis, in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
    if high / low < 10:
        steps = (1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
