"""What is wrong with runs: `Watch` checks one line of metrics after another, `diagnose` all."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, counted
from rlobj.base.targets import without_imports
from rlobj.insight.diagnosis.checks import CHECKS, NAMES
from rlobj.insight.diagnosis.history import History
from rlobj.insight.numbers import Line
from rlobj.reporting import visible
from rlobj.runs.configuration import read_changes, read_run_config, read_stop
from rlobj.runs.layout import in_another_trainer, run_paths
from rlobj.runs.logs import Log, read_log
from rlobj.runs.metrics import Progress, read_metrics
from rlobj.settings.run_config import RunConfig

PAGE = "docs/diagnosis.md"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run.

    Attributes:
        name: of the check, such as "collapse".
        evidence: what was measured, in one or two sentences with numbers.
        cure: what would have touched it: settings and rules.
        since: the first step at which it held, from 1.
        until: the last step at which it held.
        holds: it held at the last step that was read.
        numbers: the numbers of the evidence by name.
    """

    name: str
    evidence: str
    cure: str
    since: int
    until: int
    holds: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def slower(self) -> bool:
        """Whether a lower learning rate would have touched it."""
        return self.name in ("collapse", "entropy", "update-too-large")

    @property
    def page(self) -> str:
        """The section of the documentation that explains it."""
        return f"{PAGE}#{self.name}"

    @property
    def when(self) -> str:
        """Its steps in words."""
        over = f"between steps {self.since} and {self.until}"
        return f"since step {self.since}" if self.holds else over

    def __repr__(self) -> str:
        return f"{self.name}, {self.when}: {self.evidence}\n  → {self.cure}\n  {self.page}"


@dataclass(frozen=True)
class RunDiagnosis:
    """What was found in one run.

    Attributes:
        run: its folder.
        steps: number of steps that were read.
        findings: in the order of the steps in which they began.
        checked: names of the checks whose metrics the run has.
        unchecked: names of the checks whose metrics the run lacks.
        notes: settings that were changed, and how the run ended, in words.
    """

    run: Path
    steps: int
    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    unchecked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        count = counted(len(self.findings), "finding") if self.findings else "no findings"
        lines = [f"{self.run}, {self.steps} steps: {count}", *map(str, self.findings)]
        lines.append(f"checked: {', '.join(self.checked)}")
        if self.unchecked:
            lines.append(f"not checked, for lack of metrics: {', '.join(self.unchecked)}")
        return "\n".join([*lines, *self.notes])


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one run or in several runs.

    Attributes:
        runs: each run's part, in the order of the arguments.
    """

    runs: tuple[RunDiagnosis, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs."""
        return tuple(finding for run in self.runs for finding in run.findings)

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped."""
        runs = []
        for diagnosis in self.runs:
            findings = [{**asdict(finding), "page": finding.page} for finding in diagnosis.findings]
            runs.append({**asdict(diagnosis), "run": str(diagnosis.run), "findings": findings})
        return json.dumps({"runs": runs}, indent=1)

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self.runs))


class Watch:
    """The findings of a run so far. A line takes about 0.2 ms, however long the run is.

    Args:
        config: the run's.
        foreign: another trainer made the run.

    Attributes:
        history: the metrics so far.
        findings: by name; those that no longer hold as well.
    """

    def __init__(self, config: RunConfig, foreign: bool = False) -> None:
        self.history = History(config, foreign)
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
        for name in NAMES:
            result, before = self._found(name), self.findings.get(name)
            if result is None:
                if before is not None and before.holds:
                    self.findings[name] = replace(before, holds=False)
                continue
            since = before.since if before is not None else step
            finding = self.findings[name] = replace(result, since=since)
            if before is None or not before.holds:
                begun.append(finding)
        return begun

    def _found(self, name: str) -> Finding | None:
        """What the first check of this name says whose condition holds at this step."""
        for check in CHECKS:
            facts = check.condition(self.history) if check.name == name else None
            if facts is not None:
                step, words = self.history.steps[-1], {"history": self.history, **facts}
                numbers = {key: x for key, x in facts.items() if not isinstance(x, str) and x == x}
                return Finding(
                    name,
                    check.sentence.format(**words),
                    check.advice.format(**words),
                    since=step,
                    until=step,
                    numbers=numbers,
                )
        return None

    def metrics(self) -> dict[str, float]:
        """The number of findings that hold, and 1 or 0 for each that has ever held."""
        holding = {f"diagnosis/{f.name}": float(f.holds) for f in self.findings.values()}
        return {"diagnosis/findings": sum(holding.values()), **holding}


def diagnose(
    runs: Path | str | Iterable[Path | str], *, progress: Progress = lambda done, total: None
) -> Diagnosis:
    """Check runs for what goes wrong in training: collapse, drift, spikes, rules without effect.

    Each finding has its evidence with numbers, the step since which it holds, and what would have
    touched it. A check is silent where the run lacks its metrics.

    Args:
        runs: the folder of a run, finished or not, or several of them; also the log of a run in
            another trainer (`runs.logs`).
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
    logs = {run: read_log(run) for run in run_paths(runs)}
    parts = [
        diagnose_lines(run, log.lines if log else read_metrics(run, progress), log)
        for run, log in logs.items()
    ]
    return Diagnosis(tuple(parts))


@without_imports()
def diagnose_lines(run: Path, lines: Sequence[Line], log: Log | None = None) -> RunDiagnosis:
    """Check a run whose metrics.jsonl is read already; nothing that its settings name is imported.

    Args:
        run: the run's folder.
        lines: of metrics.jsonl.
        log: of a run in another trainer, which has the lines.

    Raises:
        ConfigError: as `diagnose`.
    """
    changes = [] if log else read_changes(run)
    notes = [
        visible(f"changed after step {step}: {name} {before} → {now}")
        for step, name, before, now in changes
    ]
    notes += [visible(log.note)] if log else []
    watch = Watch(*((log.config, True) if log else (read_run_config(run), in_another_trainer(run))))
    for line in lines:
        watch.add(line)
    history, stop = watch.history, None if log else read_stop(run)
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
        if log is None or name != "inert-setting"
    )
    ordered = tuple(sorted(findings.values(), key=lambda finding: finding.since))
    unchecked = tuple(name for name in NAMES if name not in checked)
    return RunDiagnosis(run, len(history.steps), ordered, checked, unchecked, tuple(notes))
