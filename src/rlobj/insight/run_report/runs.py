"""Runs as a report reads them: numbers only, whatever their files hold."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.insight.diagnosis.diagnosing import Finding, diagnose_lines
from rlobj.insight.opening import open_run
from rlobj.objectives.plan import EFFECTS
from rlobj.reporting import visible
from rlobj.runs.layout import named_folder
from rlobj.runs.logs import read_log

Lines = Sequence[dict[str, Any]]


@dataclass
class Run:
    """A run, finished or not.

    Attributes:
        path: its folder.
        settings: config.resolved.yaml; none of a run in another trainer.
        lines: metrics.jsonl in the order of steps, only numbers; None = not finite.
        findings: of the diagnosis.
        notes: changes of settings, and why there is no diagnosis, in words.
        label: short name, which no other run of the report has.
    """

    path: Path
    settings: Mapping[str, Any]
    lines: Lines
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    label: str = ""

    @property
    def steps(self) -> Lines:
        """The lines of finished steps, without the evaluation before the first."""
        return [line for line in self.lines if line["step"] > 0]

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics, in the order of their first lines."""
        return tuple(dict.fromkeys(name for line in self.lines for name in line))


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
    named = [named_folder(path) for path in paths]
    common = os.path.commonpath([path.parent for path in named])
    for run, folder in zip(runs, named, strict=True):
        run.label = visible(str(folder.relative_to(common)), 60)
    return runs


def _read(path: Path) -> Run:
    if log := read_log(path):
        run = Run(path if path.is_dir() else path.parent, {}, log.lines)
    else:
        opened = open_run(path)
        _add_effects(opened.lines)
        run = Run(path, opened.settings, opened.lines)
    if not run.steps:
        run.notes = ("no step is finished yet",)
        return run
    try:
        diagnosis = diagnose_lines(path, run.lines, log)
        run.findings, run.notes = diagnosis.findings, diagnosis.notes
    except RlobjError as error:
        run.notes = (f"no diagnosis: {visible(str(error), 300)}",)
    return run


def _add_effects(lines: Lines) -> None:
    """Add `effect/NAME` to the lines: the share of tokens that were touched so, or are spurious."""
    counts = {effect: f"tokens/{effect}" for effect in EFFECTS} | {"spurious": "spurious/tokens"}
    for line in lines:
        for effect, metric in counts.items():
            count, tokens = line.get(metric), line.get("tokens/step")
            if count is not None and tokens:
                line[f"effect/{effect}"] = count / tokens
