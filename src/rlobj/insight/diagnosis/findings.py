"""What a diagnosis says about runs: their findings, and what was checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rlobj.base.errors import counted

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
        slower: a lower learning rate would have touched it.
    """

    name: str
    evidence: str
    cure: str
    since: int
    until: int
    holds: bool = True
    numbers: Mapping[str, float] = field(default_factory=dict)
    slower: bool = False

    @property
    def page(self) -> str:
        """The section of the documentation that explains it."""
        return f"{PAGE}#{self.name}"

    @property
    def when(self) -> str:
        """Its steps in words."""
        if self.holds:
            return f"since step {self.since}"
        if self.since == self.until:
            return f"at step {self.since}"
        return f"between steps {self.since} and {self.until}"

    def __str__(self) -> str:
        return f"{self.name}, {self.when}: {self.evidence}\n  {self.cure}\n  {self.page}"


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

    def __str__(self) -> str:
        lines = [f"{self.run}, {self.steps} steps: {counted(len(self.findings), 'finding')}"]
        lines += [str(finding) for finding in self.findings]
        return "\n".join([*lines, *self.coverage, *self.notes])

    @property
    def coverage(self) -> list[str]:
        """What was checked and what was not, in words."""
        lines = [f"checked: {', '.join(self.checked)}"]
        if self.unchecked:
            lines.append(f"not checked, for lack of metrics: {', '.join(self.unchecked)}")
        return lines


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

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.runs))
