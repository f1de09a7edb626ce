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

_WIDTH, _LONGEST = 95, 400
"""Characters in a line of small text in a file, and in a whole text."""
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
    """An event at a place of the x axis, such as a finding of the diagnosis.

    Attributes:
        x: its place.
        text: what it is.
        run: the number of the run, which gives the colour.
        link: the id of an element of the page that explains it; "" = none.
    """

    x: float
    text: str
    run: int = 0
    link: str = ""


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


def styles(figure: Figure) -> list[tuple[int, int]]:
    """(number of the colour, number of the dash) of each line.

    Lines of a run share its colour and differ in their dash. Runs with one line each differ in
    both, and so do lines without a run.
    """
    runs = [i if line.run is None else line.run for i, line in enumerate(figure.lines)]
    within = [runs[:i].count(run) for i, run in enumerate(runs)]
    if any(within):
        return list(zip(runs, within, strict=True))
    return [(run, dash_of(run)) for run in runs]


def dash_of(run: int) -> int:
    """The number of a run's dash, another one each time that the colours begin again."""
    return run + run // len(COLORS)


def figure_data(figures: Sequence[Figure]) -> dict[str, Any]:
    """Figures over steps as JSON for `drawFigures` of assets/figures.js.

    Returns:
        `figures`, and `xs`: each list of places once, as lines often share them. Numbers have four
        significant digits, places are exact. Gaps are null.
    """
    places: dict[tuple[float, ...], int] = {}
    drawn = []
    for figure in figures:
        lines = []
        for line, (color, dash) in zip(figure.lines, styles(figure), strict=True):
            parts = {"y": line.y, "low": line.low, "high": line.high}
            numbers = {key: _rounded(part) for key, part in parts.items() if part is not None}
            look = {"color": COLORS[color % len(COLORS)], "dash": DASHES[dash % len(DASHES)]}
            place = places.setdefault(tuple(line.x), len(places))
            lines.append({"name": line.name, "run": line.run, **look, "x": place, **numbers})
        marks = [
            {"x": mark.x, "run": mark.run, "color": COLORS[mark.run % len(COLORS)]}
            for mark in figure.marks
        ]
        targets = list(map(vars, figure.targets))
        drawn.append({"name": figure.name, "lines": lines, "marks": marks, "targets": targets})
    return {"figures": drawn, "xs": list(places)}


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
    with warnings.catch_warnings(), matplotlib.rc_context({"svg.hashsalt": figure.name}):
        warnings.simplefilter("ignore")  # characters without a glyph, log axes without a value
        canvas = Canvas(figsize=(5, 3), layout="constrained")
        _draw(figure, canvas)
        with reported(RunError, f"cannot write {path}", OSError):
            canvas.savefig(path, dpi=200, metadata=metadata)


def _draw(figure: Figure, canvas: Any) -> None:
    """Lines, targets and marks with a legend below them, as text that is no formula."""
    import numpy as np

    axes, legend = canvas.add_subplot(), []
    for line, (color, dash) in zip(figure.lines, styles(figure), strict=True):
        look = {"color": COLORS[color % len(COLORS)], "linewidth": 1.3}
        y = np.array(line.y, float)  # None is NaN
        [drawn] = axes.plot(line.x, y, **look, marker="." if len(y) <= _FEW else "")
        if pattern := DASHES[dash % len(DASHES)]:
            drawn.set_dashes(pattern)
        if line.low is not None and line.high is not None:
            ends = np.array([line.low, line.high], float)
            axes.fill_between(line.x, *ends, color=look["color"], alpha=0.15, linewidth=0)
        legend.append((drawn, line.name))
    for target in figure.targets:
        drawn = axes.axhline(target.y, color="#888888", dashes=(2, 2))
        legend.append((drawn, target.text))
    for mark in figure.marks:
        color = COLORS[mark.run % len(COLORS)]
        drawn = axes.axvline(mark.x, color=color, linestyle=":", linewidth=1)
        legend.append((drawn, mark.text))
    axes.xaxis.get_major_locator().set_params(integer=figure.x == "step")
    axes.grid(alpha=0.3)
    caption, names = (
        [textwrap.fill(visible(text, _LONGEST), _WIDTH) for text in texts]
        for texts in (figure.caption, [name for _, name in legend])
    )
    texts = [canvas.suptitle(visible(figure.title, _WIDTH)), axes.set_xlabel(visible(figure.x, 60))]
    texts.append(axes.set_ylabel(visible(figure.unit, 60)))
    texts.append(axes.set_title("\n".join(caption), fontsize=7, color="#555555"))
    rows = caption + (names if len(legend) > 1 else [])
    canvas.set_figheight(3 + 0.16 * sum(text.count("\n") + 1 for text in rows))
    if len(legend) > 1:
        drawings = [drawn for drawn, _ in legend]
        labels = [f" {name}" for name in names]  # one with a leading _ would be left out
        box = canvas.legend(drawings, labels, loc="outside lower left", fontsize=7, frameon=False)
        texts += box.get_texts()
    for text in texts:
        text.set_parse_math(False)


def _rounded(values: Sequence[float | None]) -> list[float | None]:
    """Four significant digits; None for what is no finite number."""
    return [None if y is None or not math.isfinite(y) else float(f"{y:.4g}") for y in values]
