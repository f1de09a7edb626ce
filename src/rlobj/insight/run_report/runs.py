"""Runs as a report reads them: numbers only, whatever their files hold."""

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
from rlobj.insight import coverage
from rlobj.insight.coverage import Coverage
from rlobj.insight.diagnosis.diagnosing import diagnose_lines
from rlobj.insight.diagnosis.findings import Finding
from rlobj.reporting import visible
from rlobj.runs.configuration import read_settings
from rlobj.runs.layout import named_folder, table_files
from rlobj.runs.metrics import read_lines
from rlobj.runs.reading import Record

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
            rows = [(line, row) for line, row in rows if row[1] != 0]
            return [(line, None if None in row else row[0] / row[1]) for line, row in rows]
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
        kinds = [str(part.get("kind", "")) for part in others if isinstance(part, Mapping)]
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
    settings = [
        f"{name}={_text(setting)}"
        for name, setting in value.items()
        if name not in ("kind", "max_log_ratio") and setting not in (None, "token")
    ]
    return f"{value.get('kind', '')}({', '.join(settings)})"


def _read(path: Path) -> Run:
    notes: list[str] = []
    settings, lines = read_settings(path), read_lines(path, notes)
    record: Record | None = None
    try:
        record = Record(path)
        if not _add_effects(record, lines):
            notes.append("shares of touched tokens are estimates: the record has a sample of them")
    except (RlobjError, OSError) as error:
        if table_files(path, "records"):  # else there is no record
            notes.append(f"no shares of touched tokens: {visible(str(error), 300)}")
    run = Run(path, settings, lines)
    if not run.steps:
        run.notes = (*notes, "no step is finished yet")
        return run
    try:
        diagnosis = diagnose_lines(path, lines, notes, record)
        run.findings, run.notes = diagnosis.findings, diagnosis.notes
    except RlobjError as error:
        run.notes = (*notes, f"no diagnosis: {visible(str(error), 300)}")
    return run


def _labels(paths: Sequence[Path]) -> list[str]:
    """The paths of different folders below the folder that all of them are in."""
    named = list(map(named_folder, paths))
    common = os.path.commonpath([path.parent for path in named])
    return [str(path.relative_to(common)) for path in named]


def _add_effects(record: Record, lines: Lines) -> bool:
    """Add `effect/NAME` to the lines: the share of tokens that the objective touched in this way.

    A step that is not recorded has none.

    Returns:
        Whether the shares are exact; otherwise the record may lack touched tokens.

    Raises:
        ConfigError: the record cannot be read.
    """
    rows, sampling = record.rows(coverage.COLUMNS), record.sampling
    if sampling is not None:
        rows = rows.filter(pc.is_in(rows["step"], pyarrow.array(sorted(sampling.steps), "int32")))
    tokens = pc.divide(1.0, rows["inclusion_probability"])
    sums = rows.append_column("tokens", tokens).group_by(["effect", "step"])
    counts: dict[str, dict[float, float]] = {}
    for row in sums.aggregate([("tokens", "sum")]).to_pylist():
        counts.setdefault(row["effect"] or "", {})[row["step"]] = row["tokens_sum"]
    last = pc.max(rows["step"]).as_py() or 0
    for line in lines:  # a running run writes its rows later than its metrics
        recorded = line["step"] <= last if sampling is None else line["step"] in sampling.steps
        if recorded and (total := line.get("tokens/step")):
            shares = {name: by.get(line["step"], 0.0) / total for name, by in counts.items()}
            line.update({f"effect/{name}": share for name, share in shares.items() if name})
    return Coverage.of(record, rows, {}).touched
