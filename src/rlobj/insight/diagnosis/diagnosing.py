"""`diagnose`: what is wrong with finished or running runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RlobjError
from rlobj.base.targets import importing
from rlobj.config.run_folder import (
    Progress,
    in_another_trainer,
    read_lines,
    read_run_config,
    read_stop,
    run_paths,
)
from rlobj.insight.diagnosis.checks import CHECKS
from rlobj.insight.diagnosis.drivers import (
    common_responses,
    disputed_problems,
    entropy_drivers,
)
from rlobj.insight.diagnosis.findings import Diagnosis, Finding, RunDiagnosis
from rlobj.insight.diagnosis.watch import Watch
from rlobj.reporting import visible

_DETAILS = {
    "entropy-falling": partial(entropy_drivers, sign=-1),
    "entropy-exploding": partial(entropy_drivers, sign=1),
    "verifier-trouble": disputed_problems,
}
"""What reads the tables of a run for the details of a finding."""


def diagnose(
    runs: Path | str | Iterable[Path | str],
    *,
    trust: bool = False,
    progress: Progress = lambda done, total: None,
) -> Diagnosis:
    """Check runs for what goes wrong in training: collapse, drift, spikes, rules without effect.

    Each finding has its evidence with numbers, the step since which it holds, and what would have
    touched it. A check is silent where the run lacks its metrics, as runs of older versions do.

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
    paths = run_paths(runs)
    with importing(trust):
        return Diagnosis(tuple(_diagnosed(path, progress) for path in paths))


def _diagnosed(run: Path, progress: Progress) -> RunDiagnosis:
    notes: list[str] = []
    return diagnose_lines(run, read_lines(run, notes, progress), notes)


def diagnose_lines(run: Path, lines: Iterable[Any], notes: list[str]) -> RunDiagnosis:
    """Check a run whose metrics.jsonl is read already; nothing that its settings name is imported.

    Args:
        run: the run's folder.
        lines: of metrics.jsonl.
        notes: what could not be read; more may be added.

    Raises:
        ConfigError: as `diagnose`.
    """
    watch = Watch(read_run_config(run), in_another_trainer(run))
    for line in lines:
        watch.add(line)
    steps, stopped = watch.history.steps, read_stop(run)
    if not steps and stopped is None:
        raise ConfigError(f"{run} has no finished step yet, so there is nothing to diagnose")
    findings = [_with_details(run, finding, notes) for finding in watch.findings.values()]
    if stopped is not None:
        findings, told = _with_stop(findings, *stopped)
        notes += told
    known = [name for name, c in CHECKS.items() if any(map(watch.history.knows, c.needs))]
    return RunDiagnosis(
        run,
        len(steps),
        tuple(sorted(findings, key=lambda finding: finding.since)),
        tuple(known),
        tuple(name for name in CHECKS if name not in known),
        tuple(notes),
    )


def _with_details(run: Path, finding: Finding, notes: list[str]) -> Finding:
    """The finding with what is behind it; a note says if the tables cannot be read."""
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


def _with_stop(
    findings: list[Finding], step: int, name: str, message: str
) -> tuple[list[Finding], list[str]]:
    """The findings with the one that ended the run; a note if it was another error."""
    text = f"the run stopped at step {step}: {visible(message.partition(chr(10))[0])}"
    if name not in CHECKS:
        return findings, [text]
    if any(finding.name == name for finding in findings):
        return [
            replace(f, details=(*f.details, text)) if f.name == name else f for f in findings
        ], []
    return [*findings, Finding(name, text, "See the message.", step, step)], []
