"""The statistics of the study, as its plan defines them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.stability.outcomes import Outcome

DRAWS = 99_999
Interval = tuple[float, float]
Strata = Sequence[tuple[Sequence[float], Sequence[float]]]
"""For each stratum, the values of the runs, and those of the runs that they are compared with."""


@dataclass(frozen=True)
class Effect:
    """The mean difference of two samples over strata.

    Attributes:
        runs: number of values on both sides.
        difference: mean over the strata of (mean of the first - mean of the second).
        interval: its 95% interval by Welch and Satterthwaite; None with one run on a side.
        strata: the values.
    """

    runs: tuple[int, int]
    difference: float
    interval: Interval | None
    strata: Strata

    @property
    def p(self) -> float:
        """The two-sided p-value of the permutation test, which takes about a second."""
        return permutation(self.strata)


def effect(strata: Strata) -> Effect:
    """Compare two samples in each stratum, and average."""
    difference = mean(mean(ours) - mean(base) for ours, base in strata)
    sizes = sum(len(ours) for ours, _ in strata), sum(len(base) for _, base in strata)
    return Effect(sizes, difference, _welch(strata, difference), strata)


def _welch(strata: Strata, difference: float) -> Interval | None:
    sides = [side for pair in strata for side in pair]
    if any(len(side) < 2 for side in sides):
        return None
    parts = [variance(side) / len(side) / len(strata) ** 2 for side in sides]
    below = sum(v**2 / (len(s) - 1) for v, s in zip(parts, sides, strict=True))
    if not below:
        return difference, difference
    far = float(stats.t.ppf(0.975, sum(parts) ** 2 / below)) * math.sqrt(sum(parts))
    return difference - far, difference + far


def permutation(strata: Strata) -> float:
    """The two-sided p-value of the permutation test, which exchanges runs within each stratum.

    Under the null hypothesis the label of a run says nothing about its value. The p-value is the
    share of the exchanges, the observed one among them, whose difference is at least as far from 0.
    """
    draw, sums = np.random.default_rng(0), np.zeros(DRAWS + 1)
    for ours, base in strata:
        values, n = np.array([*ours, *base]), len(ours)
        mixed = draw.permuted(np.tile(values, (DRAWS + 1, 1)), axis=1)
        mixed[0] = values
        sums += mixed[:, :n].mean(1) - mixed[:, n:].mean(1)
    return float(np.mean(np.abs(sums) >= abs(sums[0]) - 1e-12 * np.abs(sums).max()))


def holm(p_values: Mapping[Any, float], of: int) -> dict[Any, float]:
    """Holm's corrected p-values. A comparison of `of` that is missing counts as not rejected."""
    corrected, largest = {}, 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda each: each[1])):
        largest = max(largest, min(1.0, p * (of - rank)))
        corrected[name] = largest
    return corrected


Pairs = Sequence[tuple[Sequence[Outcome], Sequence[Outcome]]]


def cost(pairs: Pairs, unit: str = "tokens") -> Effect:
    """log2 of what runs spend until the goal, compared within a horizon.

    The horizon is the least that any of the runs spent in all. A run that has not reached the goal
    by then counts with the horizon, which moves the ratio towards 1.
    """
    runs = [run for pair in pairs for side in pair for run in side]
    horizon = min(getattr(run, unit)[-1] for run in runs)

    def spent(run: Outcome) -> float:
        reached = run.reached(unit)
        return math.log2(horizon if reached is None else min(reached, horizon))

    return effect(strata(pairs, spent))


def strata(pairs: Pairs, value: Callable[[Outcome], float]) -> Strata:
    """The values of the runs of each pair."""
    return [([*map(value, ours)], [*map(value, base)]) for ours, base in pairs]


def last(pairs: Pairs) -> Effect:
    """The accuracy at the end."""
    return effect(strata(pairs, lambda run: run.last))


def at_equal_tokens(pairs: Pairs) -> Effect:
    """The accuracy when as many tokens were generated as the shortest of the runs generated."""
    least = min(run.tokens[-1] for pair in pairs for side in pair for run in side)
    return effect(strata(pairs, lambda run: run.accuracy_at(least)))
