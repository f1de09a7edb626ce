"""`diagnose`: what is wrong with finished or running runs; `Watch`: the same, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.base.targets import importing
from rlobj.config import run_folder
from rlobj.config.run_config import RunConfig
from rlobj.insight.diagnosis.checks import CHECKS, METRICS
from rlobj.insight.diagnosis.drivers import common_responses, disputed_problems, entropy_drivers
from rlobj.insight.diagnosis.findings import Diagnosis, Finding, RunDiagnosis
from rlobj.insight.diagnosis.history import History
from rlobj.reporting import visible

_DETAILS = {
    "entropy-falling": partial(entropy_drivers, sign=-1),
    "entropy-exploding": partial(entropy_drivers, sign=1),
    "verifier-trouble": disputed_problems,
}
"""What reads the tables of a run for the details of a finding."""


class Watch:
    """The findings of a run so far. A line takes about 0.2 ms, however long the run is.

    Args:
        config: the run's.
        foreign: see `History`.

    Attributes:
        history: the metrics so far.
        findings: by name; those that no longer hold as well.
    """

    def __init__(self, config: RunConfig, foreign: bool = False) -> None:
        self.history = History(config, METRICS, foreign)
        self.findings: dict[str, Finding] = {}

    def add(self, line: Mapping[str, Any]) -> list[Finding]:
        """Check the run after one more step.

        Args:
            line: of metrics.jsonl. Lines that are no training step are ignored.

        Returns:
            The findings that hold now and did not after the step before.
        """
        if "reward/mean" not in line:
            return []
        self.history.add(line)
        step, begun = self.history.steps[-1], []
        for name, check in CHECKS.items():
            found, before = check.look(self.history), self.findings.get(name)
            if found is None:
                if before is not None and before.holds:
                    self.findings[name] = replace(before, holds=False)
                continue
            since = before.since if before is not None else step
            numbers = {key: value for key, value in found.numbers.items() if isfinite(value)}
            finding = Finding(name, found.evidence, found.cure, since, step, numbers=numbers)
            self.findings[name] = finding
            if before is None or not before.holds:
                begun.append(finding)
        return begun

    def metrics(self) -> dict[str, float]:
        """The number of findings that hold, and 1 or 0 for each that has ever held."""
        holding = {f"diagnosis/{f.name}": float(f.holds) for f in self.findings.values()}
        return {"diagnosis/findings": sum(holding.values()), **holding}


def diagnose(
    runs: Path | str | Iterable[Path | str],
    *,
    trust: bool = False,
    progress: run_folder.Progress = lambda done, total: None,
) -> Diagnosis:
    """Check runs for what goes wrong in training: collapse, drift, spikes, rules without effect.

    Each finding has its evidence with numbers, the step since which it holds, and what would have
    touched it. A check is silent where the run lacks its metrics.

    Args:
        runs: the folder of a run, finished or not, or several of them.
        trust: import the code that the settings of a run name by its path.
        progress: called with (bytes read, all bytes) of the metrics of a run.

    Raises:
        ConfigError: a folder is no run, has no finished step, or names code without `trust`.

    Example:
        >>> import rlobj
        >>> run = rlobj.train("grpo", data="max-digits", settings={"training.steps": 3}).path
        >>> diagnosis = rlobj.diagnose(run)
        >>> [finding.name for finding in diagnosis.findings]
        []
        >>> "collapse" in diagnosis.runs[0].checked
        True
    """
    paths = run_folder.run_paths(runs)
    with importing(trust):
        return Diagnosis(tuple(_diagnosed(path, progress) for path in paths))


def _diagnosed(run: Path, progress: run_folder.Progress) -> RunDiagnosis:
    notes: list[str] = []
    return diagnose_lines(run, run_folder.read_lines(run, notes, progress), notes)


def diagnose_lines(run: Path, lines: Iterable[Mapping[str, Any]], notes: list[str]) -> RunDiagnosis:
    """Check a run whose metrics.jsonl is read already; nothing that its settings name is imported.

    Args:
        run: the run's folder.
        lines: of metrics.jsonl.
        notes: what could not be read; changes of settings, and more, are added.

    Raises:
        ConfigError: as `diagnose`.
    """
    for step, name, before, now in run_folder.read_changes(run):
        notes.append(visible(f"changed after step {step}: {name} {before} → {now}"))
    watch = Watch(run_folder.read_run_config(run), run_folder.in_another_trainer(run))
    for line in lines:
        watch.add(line)
    steps, stopped = watch.history.steps, run_folder.read_stop(run)
    if not steps and stopped is None:
        raise ConfigError(f"{run} has no finished step yet, so there is nothing to diagnose")
    findings = {f.name: _with_details(run, f, notes) for f in watch.findings.values()}
    if stopped is not None:
        step, name, message = stopped
        text = f"the run stopped at step {step}: {visible(message.partition(chr(10))[0])}"
        if name not in CHECKS:
            notes.append(text)
        elif name in findings:
            details = (*findings[name].details, text)
            findings[name] = replace(findings[name], details=details)
        else:
            findings[name] = Finding(name, text, "See the message.", step, step)
    known = [name for name, c in CHECKS.items() if any(map(watch.history.knows, c.needs))]
    return RunDiagnosis(
        run,
        len(steps),
        tuple(sorted(findings.values(), key=lambda finding: finding.since)),
        tuple(known),
        tuple(name for name in CHECKS if name not in known),
        tuple(notes),
    )


def _with_details(run: Path, finding: Finding, notes: list[str]) -> Finding:
    """The finding with what is behind it; a note says if the tables cannot be read.

    The command in its cure names the run and the step.
    """
    cure = finding.cure.replace("RUN", str(run)).replace("STEP", str(finding.until))
    finding = replace(finding, cure=cure)
    look = _DETAILS.get(finding.name)
    if "same_response" in finding.numbers:
        look = common_responses
    if look is None:
        return finding
    try:
        details = look(run, finding.until)
    except (RlobjError, OSError, ValueError, KeyError) as error:  # pyarrow's are ValueErrors
        notes.append(f"{finding.name}: its tables cannot be read: {visible(str(error), 200)}")
        return finding
    return replace(finding, details=tuple(details))
