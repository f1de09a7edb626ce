"""The table of figures, plots.yaml, and the curves of runs that they draw.

A row of the table makes a figure of the page and a file of `--figures`. To add one: add a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.yaml import packaged_table
from rlobj.config.run_folder import is_number, measure_of
from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.inspecting import Z95
from rlobj.insight.run_report.runs import Run, parts_of
from rlobj.reporting import Figure, Line, Mark, Target, visible

MetricLine = Mapping[str, Any]
_MOST_LINES = 12
"""Curves of a run that a `*` may stand for."""


def _held_out(line: MetricLine) -> float:
    return Z95 * measure_of([line]).error(line)


def _sampled(line: MetricLine) -> float:
    """The responses of a group share their prompt, so a group counts as one response."""
    p, groups = line["reward/accuracy"], line.get("reward/groups") or 1.0
    return Z95 * math.sqrt(max(p * (1 - p), 0.0) / max(groups, 1.0))


_WIDTHS = {"held-out": _held_out, "samples": _sampled}
"""Half of a 95% interval, from a line."""


@dataclass(frozen=True)
class Plot:
    """A figure before it has runs.

    Attributes:
        section: of the page.
        name: of its file and of its anchor.
        title: what is drawn.
        metrics: expression (see `Run.values`) -> its name in the legend. `*` stands for
            what each metric of the run has at its place, which is also its name.
        unit: of the y axis.
        interval: the 95% interval around the first metric, by its name in `_WIDTHS`.
        band: the metrics below and above the first metric.
        note: what a reader must know.
    """

    section: str
    name: str
    title: str
    metrics: Mapping[str, str | None]
    unit: str = ""
    interval: str | None = None
    band: tuple[str, str] | None = None
    note: str = ""


PLOTS = tuple(
    Plot(section, name, **keys)
    for section, plots in packaged_table("rlobj.insight.run_report", "plots.yaml").items()
    for name, keys in plots.items()
)


def figures(runs: Sequence[Run]) -> list[tuple[Plot, Figure]]:
    """The figures that have a curve."""
    drawn = [(plot, _figure(plot, runs)) for plot in PLOTS]
    return [(plot, figure) for plot, figure in drawn if figure.lines]


def finding_id(run: int, name: str) -> str:
    """The anchor of a finding in the page."""
    return f"finding-{run}-{name}"


def _figure(plot: Plot, runs: Sequence[Run]) -> Figure:
    lines, compared = [], len(runs) > 1
    several = len(plot.metrics) > 1 or "*" in "".join(plot.metrics)
    for number, run in enumerate(runs):
        for metric, label in _expanded(plot.metrics, run).items():
            curve = _curve(plot, run, metric)
            parts = (label if several or not compared else "", run.label if compared else "")
            if any(value is not None for value in curve["y"]):
                color = number if compared else None
                lines.append(Line(": ".join(filter(None, parts)), **curve, run=color))
    targets = [each for run in runs for each in _targets(plot, run)]
    rules = [(run.label if compared else "", run.rule) for run in runs]
    return Figure(
        name=plot.name,
        title=plot.title,
        unit=plot.unit,
        lines=lines,
        marks=[mark for number, run in enumerate(runs) for mark in _marks(plot, run, number)],
        targets=list(dict.fromkeys(targets)),
        caption=[": ".join(filter(None, each)) for each in rules],
    )


def _expanded(metrics: Mapping[str, str | None], run: Run) -> dict[str, str]:
    """Metrics with their names in the legend; `*` becomes what the run has at its place."""
    found = {}
    for metric, label in metrics.items():
        if "*" not in metric:
            found[metric] = label or ""
            continue
        start, end = metric.split("*")
        names = [each for each in run.metrics if each.startswith(start) and each.endswith(end)]
        inner = {each: each[len(start) : len(each) - len(end)] for each in names[:_MOST_LINES]}
        found |= {each: visible(text, 60) for each, text in inner.items() if text}
    return found


def _curve(plot: Plot, run: Run, metric: str) -> dict[str, Any]:
    """Places, values and band of a metric, where a line has it."""
    found = run.values(metric)
    y = [value for _, value in found]
    curve: dict[str, Any] = {"x": tuple(line["step"] for line, _ in found), "y": y}
    if metric != next(iter(plot.metrics)):
        return curve
    if plot.interval is not None:
        widths = [0.0 if y is None else _WIDTHS[plot.interval](line) for line, y in found]
        lowest, highest = (0.0, 1.0) if metric.endswith("accuracy") else (-math.inf, math.inf)
        ends = list(zip(y, widths, strict=True))
        curve["low"] = [None if y is None else max(y - width, lowest) for y, width in ends]
        curve["high"] = [None if y is None else min(y + width, highest) for y, width in ends]
    if plot.band is not None:
        ends = zip(("low", "high"), plot.band, strict=True)
        curve |= {end: [line.get(name) for line, _ in found] for end, name in ends}
    return curve


def _targets(plot: Plot, run: Run) -> list[Target]:
    """The entropies at which a gate of the objective opens."""
    if plot.name != "entropy":
        return []
    objective = run.settings.get("objective")
    controllers = objective.get("controllers") if isinstance(objective, Mapping) else None
    return [
        Target(gate["target"], gate["target"], f"target of {name}")
        for name, gate in (controllers.items() if isinstance(controllers, Mapping) else ())
        if isinstance(gate, Mapping) and gate.get("of") is None and is_number(gate.get("target"))
    ]


def _marks(plot: Plot, run: Run, number: int) -> list[Mark]:
    """The findings whose checks read a metric of the figure, and that began at some step."""
    drawn = {name for metric in plot.metrics for name in parts_of(metric)}
    known = [each for each in run.findings if each.name in CHECKS and each.name != "inert-setting"]
    return [
        Mark(each.since, f"{each.name}, {each.when}", number, finding_id(number, each.name))
        for each in known
        if drawn & {*CHECKS[each.name].needs, *CHECKS[each.name].also}
    ]
