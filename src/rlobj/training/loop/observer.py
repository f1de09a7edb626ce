"""What a run tells whoever watches it: the command line, a notebook, a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlobj.evaluation import Summary

__all__ = ["Observer"]


class Observer:
    """Every method does nothing here; override those that matter."""

    def warm_starting(self, done: int, total: int, loss: float) -> None:
        """The embedded policy's supervised run went on."""

    def started(self, facts: Mapping[str, str]) -> None:
        """The run is ready; facts are short texts by name."""

    def phase(self, name: str) -> None:
        """The step went on to sampling, grading, scoring, updating or evaluating."""

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step is complete (from 1)."""

    def evaluated(self, step: int, summary: Summary) -> None:
        """Held-out evaluation after a step (0 = before the first)."""

    def saved(self, path: Path) -> None:
        """A checkpoint is on disk."""
