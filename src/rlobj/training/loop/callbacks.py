"""Objects that receive the events of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlobj.evaluation import GradedBenchmark
    from rlobj.insight import Finding
    from rlobj.training.loop.result import TrainingResult
    from rlobj.training.resolving import ResolvedRun


class Callback:
    """Receives the events of a run. Every method does nothing here; override those you need."""

    def opened(self, run: ResolvedRun) -> None:
        """The settings of the run are checked: `run.config`. Nothing is written or loaded yet."""

    def opening(self, what: str) -> None:
        """A stage before the first step begins, such as "loading the model"."""

    def started(self, facts: Mapping[str, str]) -> None:
        """The run is ready. `facts` describes policy, problems, device, ... in short texts."""

    def phase(self, name: str) -> None:
        """A stage of the step begins: sampling, scoring, updating, syncing or evaluating."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is complete. Steps count from 1."""

    def found(self, finding: Finding) -> None:
        """The diagnosis of the run has a finding that the step before did not have."""

    def evaluated(self, step: int, benchmark: GradedBenchmark) -> None:
        """The policy was evaluated on the held-out problems after a step; 0 = before the first.

        `benchmark` has grades and lengths, and no texts.
        """

    def saved(self, path: Path) -> None:
        """A checkpoint was written."""

    def ended(self, result: TrainingResult) -> None:
        """The run has ended: with its last step, or after Ctrl-C or SIGTERM with fewer steps."""
