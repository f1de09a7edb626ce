"""`diagnose`: what is wrong with finished or running runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.base.targets import without_imports
from rlobj.insight.diagnosis.checks import CHECKS, NAMES
from rlobj.insight.diagnosis.findings import Diagnosis, Finding, RunDiagnosis
from rlobj.insight.diagnosis.watching import Watch
from rlobj.insight.numbers import Line
from rlobj.reporting import visible
from rlobj.runs.configuration import read_run_config
from rlobj.runs.layout import in_another_trainer, run_paths
from rlobj.runs.metrics import Progress, read_metrics
from rlobj.runs.sessions import read_changes, read_stop


def diagnose(
    runs: Path | str | Iterable[Path | str],
    *,
    progress: Progress = lambda done, total: None,
) -> Diagnosis:
    """Check runs for what goes wrong in training: collapse, drift, spikes, rules without effect.

    Each finding has its evidence with numbers, the step since which it holds, and what would have
    touched it. A check is silent where the run lacks its metrics.

    Args:
        runs: the folder of a run, finished or not, or several of them.
        progress: called with (bytes read, all bytes) of the metrics of a run.

    Raises:
        ConfigError: a folder is no run, or has no finished step.

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
    return Diagnosis(tuple(diagnose_lines(run, read_metrics(run, progress)) for run in paths))


@without_imports()
def diagnose_lines(run: Path, lines: Sequence[Line]) -> RunDiagnosis:
    """Check a run whose metrics.jsonl is read already; nothing that its settings name is imported.

    Args:
        run: the run's folder.
        lines: of metrics.jsonl.

    Raises:
        ConfigError: as `diagnose`.
    """
    notes = [
        visible(f"changed after step {step}: {name} {before} → {now}")
        for step, name, before, now in read_changes(run)
    ]
    watch = Watch(read_run_config(run), in_another_trainer(run))
    for line in lines:
        watch.add(line)
    history, stop = watch.history, read_stop(run)
    if not history.steps and stop is None:
        raise ConfigError(f"{run} has no finished step yet, so there is nothing to diagnose")
    findings = dict(watch.findings)
    if stop is not None:
        step, name, message = stop
        text = f"the run stopped at step {step}: {visible(message.partition(chr(10))[0])}"
        if name in NAMES and name not in findings:
            findings[name] = Finding(name, text, "See the message.", step, step)
        else:
            notes.append(text)
    checked = tuple(
        name
        for name in NAMES
        if any(all(map(history.knows, row.reads)) for row in CHECKS if row.name == name)
    )
    ordered = tuple(sorted(findings.values(), key=lambda finding: finding.since))
    unchecked = tuple(name for name in NAMES if name not in checked)
    return RunDiagnosis(run, len(history.steps), ordered, checked, unchecked, tuple(notes))
