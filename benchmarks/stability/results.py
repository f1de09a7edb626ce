"""What the report and its pictures show: the runs that ended, and the effect of each knob."""

from __future__ import annotations

from pathlib import Path

from benchmarks.stability.analysis import Effect, Pairs
from benchmarks.stability.outcomes import Outcome, outcome
from benchmarks.stability.plan import PARTS, Arm, Question
from rlobj.base.errors import RunError

Knob = tuple[str, Effect, Effect | None]
"""A title, the effect on the accuracy at the end, and on log2 of the tokens until 0.85; None if no
run reaches 0.85."""


class Results:
    """The runs that ended, by part and arm."""

    def __init__(self, runs: Path) -> None:
        planned = [run for part in PARTS.values() for run in part.runs()]
        ended = [(run, found) for run in planned if (found := outcome(run, runs))]
        self.planned, self.all = len(planned), [found for _, found in ended]
        self._of: dict[tuple[str, Arm], list[Outcome]] = {}
        for run, found in ended:
            self._of.setdefault((run.part, run.arm), []).append(found)
        if not ended:
            raise RunError(
                f"no run of the study has ended in {runs}: expected --runs DIR, its folder"
            )

    def of(self, part: str, arm: Arm) -> list[Outcome]:
        """The runs of an arm that ended."""
        return self._of.get((part, arm), [])

    def pairs(self, question: Question) -> Pairs:
        """Those of a comparison; none if a side of a pair has no run."""
        pairs = [(self.of(*ours), self.of(*base)) for ours, base in question.pairs]
        return pairs if all(ours and base for ours, base in pairs) else []
