"""Watch: the checks on one line of metrics after another, as training makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlobj.insight.diagnosis.checks import CHECKS, NAMES
from rlobj.insight.diagnosis.findings import Finding
from rlobj.insight.diagnosis.history import History
from rlobj.settings.run_config import RunConfig


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
            finding = replace(result, since=since)
            self.findings[name] = finding
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
                    slower=check.slower,
                )
        return None

    def metrics(self) -> dict[str, float]:
        """The number of findings that hold, and 1 or 0 for each that has ever held."""
        holding = {f"diagnosis/{f.name}": float(f.holds) for f in self.findings.values()}
        return {"diagnosis/findings": sum(holding.values()), **holding}
