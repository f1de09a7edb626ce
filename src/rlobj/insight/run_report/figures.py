"""The figures of a report: what each draws, and the curves of runs in it.

An entry of figures.yaml makes a figure of the page and a file of `--figures`. To add one: add an
entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.yaml import packaged_table
from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.numbers import Z95
from rlobj.insight.run_report.runs import Run
from rlobj.reporting import Figure, Line, Mark, Target, visible
from rlobj.runs.metrics import MEASURES

_MOST_LINES = 12
"""Curves of a run that a `*` may stand for."""


@dataclass(frozen=True)
class Plot:
    """A figure before it has runs.

    Attributes:
        name: of its file and of its anchor.
        title: what is drawn.
        unit: of the y axis.
        metrics: a metric or a quotient `a / b` -> its name in the legend. `*` stands for what each
            metric of the run has at its place, which is also its name.
        note: what a reader must know.
    """

    name: str
    title: str
    unit: str
    metrics: Mapping[str, str | None]
    note: str = ""


PLOTS = {
    section: [Plot(name, **keys) for name, keys in plots.items()]
    for section, plots in packaged_table("rlobj.insight.run_report", "figures.yaml").items()
}
"""The figures by section of the page."""


def figures(runs: Sequence[Run]) -> list[tuple[str, Plot, Figure]]:
    """The figures that have a curve, with their sections."""
    drawn = [(name, plot, _figure(plot, runs)) for name, plots in PLOTS.items() for plot in plots]
    return [entry for entry in drawn if entry[2].lines]


def finding_id(run: int, name: str) -> str:
    """The anchor of a finding in the page."""
    return f"finding-{run}-{name}"


def _figure(plot: Plot, runs: Sequence[Run]) -> Figure:
    lines, compared = [], len(runs) > 1
    several = len(plot.metrics) > 1 or "*" in "".join(plot.metrics)
    for number, run in enumerate(runs):
        for metric, label in _expanded(plot.metrics, run).items():
            curve = _curve(run, metric)
            parts = (label if several or not compared else "", run.label if compared else "")
            if any(value is not None for value in curve["y"]):
                color = number if compared else None
                lines.append(Line(": ".join(filter(None, parts)), **curve, run=color))
    targets = [target for run in runs for target in _targets(plot, run)]
    rules = [(run.label if compared else "", run.rule) for run in runs]
    return Figure(
        name=plot.name,
        title=plot.title,
        unit=plot.unit,
        lines=lines,
        marks=[mark for number, run in enumerate(runs) for mark in _marks(plot, run, number)],
        targets=list(dict.fromkeys(targets)),
        caption=[": ".join(filter(None, label_and_rule)) for label_and_rule in rules],
    )


def _expanded(metrics: Mapping[str, str | None], run: Run) -> dict[str, str]:
    """Metrics with their names in the legend; `*` becomes what the run has at its place."""
    labels = {}
    for metric, label in metrics.items():
        if "*" not in metric:
            labels[metric] = label or ""
            continue
        start, end = metric.split("*")
        names = [name for name in run.metrics if name.startswith(start) and name.endswith(end)]
        inner = {name: name[len(start) : len(name) - len(end)] for name in names[:_MOST_LINES]}
        labels |= {name: visible(text, 60) for name, text in inner.items() if text}
    return labels


def _curve(run: Run, metric: str) -> dict[str, Any]:
    """Places and values of a metric, where a line has it; a held-out number has its interval."""
    points = run.values(metric)
    curve = {"x": tuple(line["step"] for line, _ in points), "y": [value for _, value in points]}
    measure = {measure.key: measure for measure in MEASURES}.get(metric)
    if measure is not None:
        widths = [Z95 * measure.error(line) for line, _ in points]
        ends = list(zip(curve["y"], widths, strict=True))
        curve["low"] = [None if y is None else y - width for y, width in ends]
        curve["high"] = [None if y is None else y + width for y, width in ends]
    return curve


def _targets(plot: Plot, run: Run) -> list[Target]:
    """The entropies at which a gate of the objective opens."""
    if plot.name != "entropy":
        return []
    objective = run.settings.get("objective")
    controllers = objective.get("controllers") if isinstance(objective, Mapping) else None
    return [
        Target(gate["target"], visible(f"target of {name}", 60))
        for name, gate in (controllers.items() if isinstance(controllers, Mapping) else ())
        if isinstance(gate, Mapping)
        and gate.get("of") is None
        and isinstance(gate.get("target"), int | float)
    ]


def _marks(plot: Plot, run: Run, number: int) -> list[Mark]:
    """The findings whose checks read a metric of the figure, and that began at some step."""
    drawn = {name for metric in plot.metrics for name in metric.split(" / ")}
    marks = []
    for finding in run.findings:
        read = {metric for row in CHECKS if row.name == finding.name for metric in row.reads}
        if finding.name != "inert-setting" and drawn & read:
            text = f"{finding.name}, {finding.when}"
            marks.append(Mark(finding.since, text, number, finding_id(number, finding.name)))
    return marks
