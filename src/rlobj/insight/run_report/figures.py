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


def figures(runs: Sequence[Run]) -> list[tuple[Plot, Figure]]:
    """The figures that have a curve."""
    drawn = [(plot, _figure(plot, runs)) for plot in PLOTS]
    return [(plot, figure) for plot, figure in drawn if figure.lines]


def _figure(plot: Plot, runs: Sequence[Run]) -> Figure:
    lines, compared = [], len(runs) > 1
    for number, run in enumerate(runs):
        for metric, label in _metrics(plot.metric, run).items():
            curve = _curve(run, metric)
            name = ": ".join(filter(None, (label, run.label if compared else "")))
            if any(value is not None for value in curve["y"]):
                lines.append(Line(name or plot.title, **curve, run=number if compared else None))
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


def _metrics(pattern: str, run: Run) -> dict[str, str]:
    """The metrics of a figure, each with its own name in the legend."""
    start, star, end = pattern.partition("*")
    if not star:
        return {pattern: ""}
    names = [name for name in run.metrics if name.startswith(start) and name.endswith(end)]
    inner = {name: name[len(start) : len(name) - len(end)] for name in names[:_MOST_LINES]}
    return {name: visible(text, 60) for name, text in inner.items() if text}


def _curve(run: Run, metric: str) -> dict[str, Any]:
    """Places and values of a metric, where a line has it; a held-out number has its interval."""
    lines = [line for line in run.lines if metric in line]
    curve = {"x": tuple(line["step"] for line in lines), "y": [line[metric] for line in lines]}
    measure = {measure.key: measure for measure in MEASURES}.get(metric)
    if measure is not None:
        widths = [Z95 * measure.error(line) for line in lines]
        ends = list(zip(curve["y"], widths, strict=True))
        curve["low"] = [None if y is None else y - width for y, width in ends]
        curve["high"] = [None if y is None else y + width for y, width in ends]
    return curve


def _targets(plot: Plot, run: Run) -> list[Target]:
    """The entropies at which a gate of the objective opens."""
    objective = run.settings.get("objective")
    controllers = objective.get("controllers") if isinstance(objective, Mapping) else None
    if plot.name != "entropy" or not isinstance(controllers, Mapping):
        return []
    return [
        Target(gate["target"], visible(f"target of {name}", 60))
        for name, gate in controllers.items()
        if isinstance(gate, Mapping)
        and gate.get("of") is None
        and isinstance(gate.get("target"), int | float)
    ]


def _marks(plot: Plot, run: Run, number: int) -> list[Mark]:
    """The findings whose checks read the metric of the figure, and that began at some step."""
    readers = {row.name for row in CHECKS if plot.metric in row.reads} - {"inert-setting"}
    return [
        Mark(finding.since, finding.name, number)
        for finding in run.findings
        if finding.name in readers
    ]
