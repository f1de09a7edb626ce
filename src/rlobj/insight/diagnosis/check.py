"""A check of a diagnosis: what it reads, and what it has found.

A check looks at the end of a `History` and returns what it found there, or None. It is silent where
a metric that it reads is absent. `docs/diagnosis.md` explains each check and its thresholds.

To add one: write the function, with its thresholds above it, into the module of its subject in
`checks/`, its name into `settings.training.FindingName`, a section of the page, and a run that has
it into `tests/training/test_sick_runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rlobj.insight.diagnosis.history import History


class Found(NamedTuple):
    """What a check has found at the end of a history.

    Attributes:
        evidence: what was measured, with its numbers.
        cure: what would have touched it: settings and rules.
        numbers: those of the evidence, by name.
        slower: a lower learning rate would have touched it.
    """

    evidence: str
    cure: str
    numbers: Mapping[str, float]
    slower: bool = False


class Check(NamedTuple):
    """A check and the metrics without which it says nothing.

    Attributes:
        look: the check.
        needs: metrics; one of them is enough.
        also: metrics that it reads beside them.
    """

    look: Callable[[History], Found | None]
    needs: Sequence[str]
    also: Sequence[str]


def reads(
    *needs: str, also: Sequence[str] = ()
) -> Callable[[Callable[[History], Found | None]], Check]:
    """Make a function a `Check` that reads these metrics."""
    return lambda look: Check(look, needs, also)
