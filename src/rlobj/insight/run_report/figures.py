"""The figures of a report: what each draws, and the curves of runs in it.

An entry of figures.yaml makes a figure. To add one: add an entry.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rlobj.base.yaml import packaged_table
from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.numbers import Z95
from rlobj.insight.run_report.runs import Run
from rlobj.reporting import visible
from rlobj.runs.metrics import MEASURES

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito 2008: colours that people with any kind of colour blindness can tell apart."""
DASHES = ((), (6, 2), (2, 2), (8, 2, 2, 2), (4, 4), (1, 3))
"""Lengths of strokes and gaps in pixels; () is a solid line."""
_MOST_LINES = 12
"""Curves of a run that a `*` may stand for."""


@dataclass(frozen=True)
class Plot:
    """A figure before it has runs.

    Attributes:
        name: of its anchor.
        title: what is drawn.
        unit: of the y axis.
        metric: its name in metrics.jsonl. `*` stands for what each metric of the run has at its
            place, which is the name of its curve.
        note: what a reader must know.
    """

    name: str
    title: str
    unit: str
    metric: str
    note: str = ""


PLOTS = [
    Plot(name, **keys)
    for name, keys in packaged_table("rlobj.insight.run_report", "figures.yaml").items()
]


@dataclass(frozen=True)
class Figure:
    """What `drawFigures` of reporting/assets/figures.js draws.

    Attributes:
        name: of its anchor.
        lines: curves: `name`, `color`, `dash`, places `x` and values `y`, with None for a gap; a
            held-out number has the ends of its interval, `low` and `high`.
        marks: findings, at the step `x`: `text` and `color`.
    """

    name: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def constant(self) -> float | None:
        """The value of all curves at all steps, if it is one and no finding is about it."""
        values = {value for line in self.lines for value in line["y"] if value is not None}
        several = any(len(line["y"]) > 2 for line in self.lines)
        return min(values) if several and len(values) == 1 and not self.marks else None


def figures(runs: Sequence[Run]) -> list[tuple[Plot, Figure]]:
    """The figures that have a curve."""
    drawn = [(plot, _figure(plot, runs)) for plot in PLOTS]
    return [(plot, figure) for plot, figure in drawn if figure.lines]


def _figure(plot: Plot, runs: Sequence[Run]) -> Figure:
    """A run has a colour, and each of its curves a dash; the curves of a single run have both."""
    figure, compared = Figure(plot.name), len(runs) > 1
    for number, run in enumerate(runs):
        for i, (metric, label) in enumerate(_metrics(plot.metric, run).items()):
            curve = _curve(run, metric)
            name = ": ".join(filter(None, (label, run.label if compared else ""))) or plot.title
            color = COLORS[(number if compared else i) % len(COLORS)]
            dash = DASHES[(i + number // len(COLORS)) % len(DASHES)]
            if any(value is not None for value in curve["y"]):
                look = {"name": name, "color": color, "dash": dash}
                figure.lines.append(look | curve)
        readers = {row.name for row in CHECKS if plot.metric in row.reads} - {"inert-setting"}
        figure.marks.extend(
            {"x": finding.since, "text": finding.name, "color": COLORS[number % len(COLORS)]}
            for finding in run.findings
            if finding.name in readers
        )
    return figure


def _metrics(pattern: str, run: Run) -> dict[str, str]:
    """The metrics of a figure, each with its own name in the legend."""
    start, star, end = pattern.partition("*")
    if not star:
        return {pattern: ""}
    names = [name for name in run.metrics if name.startswith(start) and name.endswith(end)]
    inner = {name: name[len(start) : len(name) - len(end)] for name in names[:_MOST_LINES]}
    return {name: visible(text, 60) for name, text in inner.items() if text}


def _curve(run: Run, metric: str) -> dict[str, list[float | None]]:
    """Places and values of a metric, where a line has it; a held-out number has its interval."""
    lines = [line for line in run.lines if metric in line]
    curve = {"x": [line["step"] for line in lines], "y": [_short(line[metric]) for line in lines]}
    measure = {measure.key: measure for measure in MEASURES}.get(metric)
    if measure is not None:
        widths = [Z95 * measure.error(line) for line in lines]
        ends = list(zip((line[metric] for line in lines), widths, strict=True))
        curve["low"] = [None if y is None else _short(y - width) for y, width in ends]
        curve["high"] = [None if y is None else _short(y + width) for y, width in ends]
    return curve


def _short(value: float | None) -> float | None:
    """Four significant digits; None for what is no finite number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
