"""Figures of curves: one description for a page (assets/figures.js) and for papers (matplotlib)."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, MissingExtra, RunError, reported
from rlobj.base.text import visible

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito 2008: colours that people with any kind of colour blindness can tell apart."""
DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3))
"""Lengths of strokes and gaps in pixels; () is a solid line."""
_WIDTH = 95
"""Characters in a line of small text in a file."""
_FEW = 12
"""Points that are drawn as dots as well."""


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        name: in the legend.
        x: its places.
        y: its values; None or NaN is a gap.
        low, high: a band around it, such as an interval; None = no band.
        run: the number of the run, which gives the colour; None = a colour of its own.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    run: int | None = None


@dataclass(frozen=True)
class Mark:
    """An event at a place of the x axis, such as a finding of the diagnosis, in a run's colour."""

    x: float
    text: str
    run: int = 0


@dataclass(frozen=True)
class Target:
    """A value of the y axis that a controller or a user aims at."""

    y: float
    text: str


@dataclass(frozen=True)
class Figure:
    """Curves over a common axis.

    Attributes:
        name: of its file.
        title: what is drawn.
        unit: of the y axis, such as "nats"; "" if it has none.
        lines: the curves.
        marks: events.
        targets: horizontal lines.
        x: title of the x axis, with its unit.
        caption: lines below the title in files, such as the rules of the runs.
    """

    name: str
    title: str
    unit: str
    lines: Sequence[Line]
    marks: Sequence[Mark] = ()
    targets: Sequence[Target] = ()
    x: str = "step"
    caption: Sequence[str] = ()


def looks(lines: Sequence[Line]) -> list[tuple[str, tuple[int, ...]]]:
    """The colour and the dash of each line: the lines of a run share a colour, and no dash."""
    runs = [i if line.run is None else line.run for i, line in enumerate(lines)]
    dashes = [runs[:i].count(run) + run // len(COLORS) for i, run in enumerate(runs)]
    return [
        (COLORS[run % len(COLORS)], DASHES[dash % len(DASHES)])
        for run, dash in zip(runs, dashes, strict=True)
    ]


def figure_data(figure: Figure) -> dict[str, Any]:
    """A figure over steps as JSON for `drawFigures` of assets/figures.js.

    Numbers have four significant digits, places are exact, and gaps are null.
    """
    lines = []
    for line, (color, dash) in zip(figure.lines, looks(figure.lines), strict=True):
        parts = {"y": line.y, "low": line.low, "high": line.high}
        numbers = {key: _rounded(part) for key, part in parts.items() if part is not None}
        lines.append({"name": line.name, "color": color, "dash": dash, "x": line.x, **numbers})
    marks = [{**vars(mark), "color": COLORS[mark.run % len(COLORS)]} for mark in figure.marks]
    targets = list(map(vars, figure.targets))
    return {"name": figure.name, "lines": lines, "marks": marks, "targets": targets}


def save_figure(figure: Figure, path: Path) -> None:
    """Draw a figure into a file for a paper.

    Args:
        figure: the curves.
        path: ends with .svg or .png; its folder exists.

    Raises:
        ConfigError: another ending.
        MissingExtra: matplotlib is not installed.
        RunError: the disk refused.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"figures are written as .svg or .png, not as {path.name!r}")
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise MissingExtra("matplotlib", "figures", f"drawing {path.name}") from error

    metadata = {"Date": None} if path.suffix == ".svg" else {}
    settings: Any = {"svg.hashsalt": figure.name, "text.parse_math": False}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.simplefilter("ignore")  # characters without a glyph
        canvas = Canvas(figsize=(5, 3), layout="constrained")
        _draw(figure, canvas)
        with reported(RunError, f"cannot write {path}", OSError):
            canvas.savefig(path, dpi=200, metadata=metadata)


def _draw(figure: Figure, canvas: Any) -> None:
    """Lines, targets and marks with a legend below them."""
    import numpy as np

    axes, legend = canvas.add_subplot(), []
    for line, (color, dash) in zip(figure.lines, looks(figure.lines), strict=True):
        y = np.array(line.y, float)  # None is NaN
        look = {"linestyle": (0, dash) if dash else "-", "marker": "." if len(y) <= _FEW else ""}
        [drawn] = axes.plot(line.x, y, color=color, linewidth=1.3, **look)
        if line.low is not None and line.high is not None:
            ends = np.array([line.low, line.high], float)
            axes.fill_between(line.x, *ends, color=color, alpha=0.15, linewidth=0)
        legend.append((drawn, line.name))
    for target in figure.targets:
        legend.append((axes.axhline(target.y, color="#888888", dashes=(2, 2)), target.text))
    for mark in figure.marks:
        color = COLORS[mark.run % len(COLORS)]
        legend.append((axes.axvline(mark.x, color=color, linestyle=":", linewidth=1), mark.text))
    axes.xaxis.get_major_locator().set_params(integer=figure.x == "step")
    axes.grid(alpha=0.3)
    axes.set(xlabel=visible(figure.x, 60), ylabel=visible(figure.unit, 60))
    canvas.suptitle(visible(figure.title, _WIDTH))
    caption = "\n".join(map(_wrapped, figure.caption))
    axes.set_title(caption, fontsize=7, color="#555555")
    rows = caption.count("\n") + 1
    if len(legend) > 1:
        names = [f" {_wrapped(name)}" for _, name in legend]  # one with a leading _ is left out
        drawings = [drawn for drawn, _ in legend]
        canvas.legend(drawings, names, loc="outside lower left", fontsize=7, frameon=False)
        rows += sum(name.count("\n") + 1 for name in names)
    canvas.set_figheight(3 + 0.16 * rows)


def _wrapped(text: str) -> str:
    return textwrap.fill(visible(text, 400), _WIDTH)


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Four significant digits; None for what is no finite number."""
    return [None if y is None or not math.isfinite(y) else float(f"{y:.4g}") for y in values]
