"""Runs as a report reads them: numbers only, whatever their files hold.

The table of figures, plots.yaml, and the curves of runs that they draw.

A row of the table makes a figure of the page and a file of `--figures`. To add one: add a row.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow

from rlobj.base.arrow import pc
from rlobj.base.errors import ConfigError, RlobjError
from rlobj.base.targets import importing
from rlobj.base.yaml import packaged_table
from rlobj.config.run_folder import is_number, measure_of, named_folder, read_lines, read_settings
from rlobj.insight import coverage
from rlobj.insight.coverage import Coverage
from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.diagnosis.diagnosing import Finding, diagnose_lines
from rlobj.insight.inspecting import Z95
from rlobj.records.reading import read_design, read_records
from rlobj.reporting import Figure, Line, Mark, Target, visible

MetricLine = dict[str, Any]
Lines = Sequence[MetricLine]
_RULES = ("drop", "keep", "reweight", "shape", "split")


@dataclass
class Run:
    """A run, finished or not.

    Attributes:
        path: its folder.
        settings: config.resolved.yaml.
        lines: metrics.jsonl in the order of steps, only numbers; None = not finite.
        findings: of the diagnosis.
        notes: what could not be read, in words.
        label: short name, which no other run of the report has.
        rule: the rule that ran; "" if it is unknown.
    """

    path: Path
    settings: Mapping[str, Any]
    lines: Lines
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    label: str = ""
    rule: str = ""

    @property
    def steps(self) -> Lines:
        """The lines of finished steps, without the evaluation before the first."""
        return [line for line in self.lines if line["step"] > 0]

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, in the order of their first lines."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line))

    def values(self, expression: str) -> list[tuple[MetricLine, float | None]]:
        """A metric, a sum `a + b + c` or a quotient `a / b`, with the lines that have its parts.

        None where a part is not finite. A quotient by 0 is left out.
        """
        if expression in self.metrics:  # its name may be a rule, with signs of its own
            return [(line, line[expression]) for line in self.lines if expression in line]
        names = parts_of(expression)
        lines = [line for line in self.lines if all(name in line for name in names)]
        rows = [(line, [line[name] for name in names]) for line in lines]
        if " / " in expression:
            found = [(line, row) for line, row in rows if row[1] != 0]
            return [(line, None if None in row else row[0] / row[1]) for line, row in found]
        return [(line, None if None in row else math.fsum(row)) for line, row in rows]


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read runs; a folder that is given twice counts once.

    Raises:
        ConfigError: a folder is no run, or no run has anything measured yet.
    """
    paths = list({path.resolve(): path for path in folders}.values())
    runs = [_read(path) for path in paths]
    if not any(run.lines for run in runs):
        names = ", ".join(map(str, paths))
        raise ConfigError(f"{names}: no step is finished yet, so there is nothing to report")
    for run, label in zip(runs, _labels(paths), strict=True):
        run.label = visible(label, 60)
        run.rule = visible(rule_of(run.settings), 300)
    return runs


def rule_of(settings: Mapping[str, Any]) -> str:
    """The rules, penalties and correction of the objective that ran; "" if they are unknown.

    An objective without rules is named after its surrogate, advantage and divisor.

    Example:
        >>> rule_of({"objective": {"drop": "prob < 0.1", "mismatch": {"kind": "mask", "high": 2}}})
        'drop prob < 0.1, mask(high=2)'
    """
    objective = settings.get("objective")
    if not isinstance(objective, Mapping):
        return ""
    parts = [f"{name} {_text(objective[name])}" for name in _RULES if objective.get(name)]
    if not parts and objective.get("surrogate"):
        others = map(objective.get, ("advantage", "divisor"))
        kinds = [str(each.get("kind", "")) for each in others if isinstance(each, Mapping)]
        parts = [_text(objective["surrogate"]), *filter(None, kinds)]
    parts += [_text(objective[name]) for name in ("penalties", "mismatch") if objective.get(name)]
    return ", ".join(parts)


def parts_of(expression: str) -> list[str]:
    """The metrics of an expression, see `Run.values`."""
    return re.split(" [+/] ", expression)


def _text(value: Any) -> str:
    """A setting as text: a list without brackets, a primitive as its kind with its settings."""
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if not isinstance(value, Mapping):
        return str(value)
    given = [
        f"{name}={_text(each)}"
        for name, each in value.items()
        if name not in ("kind", "max_log_ratio") and each not in (None, "token")
    ]
    return f"{value.get('kind', '')}({', '.join(given)})"


def _read(path: Path) -> Run:
    notes: list[str] = []
    settings, lines = read_settings(path), read_lines(path, notes)
    try:
        if not _add_effects(path, lines):
            notes.append("shares of touched tokens are estimates: the record has a sample of them")
    except (RlobjError, OSError) as error:
        if any((path / "records").glob("*.parquet")):  # else there is no record
            notes.append(f"no shares of touched tokens: {visible(str(error), 300)}")
    run = Run(path, settings, lines)
    if not run.steps:
        run.notes = (*notes, "no step is finished yet")
        return run
    try:
        with importing(False):  # a run's folder is not trusted
            diagnosis = diagnose_lines(path, lines, notes)
        run.findings, run.notes = diagnosis.findings, diagnosis.notes
    except RlobjError as error:
        run.notes = (*notes, f"no diagnosis: {visible(str(error), 300)}")
    return run


def _labels(paths: Sequence[Path]) -> list[str]:
    """The paths of different folders below the folder that all of them are in."""
    named = list(map(named_folder, paths))
    common = os.path.commonpath([path.parent for path in named])
    return [str(path.relative_to(common)) for path in named]


def _add_effects(run: Path, lines: Lines) -> bool:
    """Add `effect/NAME` to the lines: the share of tokens that the objective touched in this way.

    A step that is not recorded has none.

    Returns:
        Whether the shares are exact; otherwise the record may lack touched tokens.

    Raises:
        ConfigError: no record, or one that cannot be read.
    """
    rows = read_records(run, coverage.COLUMNS)
    design = read_design(run)
    if design is not None:
        rows = rows.filter(pc.is_in(rows["step"], pyarrow.array(sorted(design[1]), "int32")))
    tokens = pc.divide(1.0, rows["inclusion_probability"])
    sums = rows.append_column("tokens", tokens).group_by(["effect", "step"])
    counts: dict[str, dict[float, float]] = {}
    for row in sums.aggregate([("tokens", "sum")]).to_pylist():
        counts.setdefault(row["effect"] or "", {})[row["step"]] = row["tokens_sum"]
    last = pc.max(rows["step"]).as_py() or 0
    for line in lines:  # a running run writes its rows later than its metrics
        known = line["step"] <= last if design is None else line["step"] in design[1]
        if known and (total := line.get("tokens/step")):
            shares = {name: by.get(line["step"], 0.0) / total for name, by in counts.items()}
            line.update({f"effect/{name}": share for name, share in shares.items() if name})
    return Coverage.of(run, rows, {}).touched


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
