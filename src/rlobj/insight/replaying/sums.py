"""Sums over tokens and ratios of them, with the error that a sample of the tokens has."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """Σ x over tokens, and the variance that comes from recording a sample of them.

    Attributes:
        value: Σ x/p over recorded tokens.
        variance: Σ x²·(1 − p)/p², 0 if all tokens are recorded.
    """

    value: float = 0.0
    variance: float = 0.0

    @property
    def error(self) -> float:
        """One standard error."""
        return math.sqrt(self.variance)

    def plus(self, other: Estimate) -> Estimate:
        """The sum of two disjoint parts."""
        return Estimate(self.value + other.value, self.variance + other.variance)

    def over(self, whole: Estimate) -> Estimate:
        """The share R = Σ_part x / Σ_whole x, where the part is some of the tokens of the whole.

        The variance is that of Σ (x_part − R·x)/Σ_whole x, to first order.
        """
        if not whole.value:
            return Estimate(math.nan, 0.0)
        share = self.value / whole.value
        spread = self.variance * (1 - 2 * share) + share * share * whole.variance
        return Estimate(share, max(spread, 0.0) / whole.value**2)


Sums = defaultdict[str, Estimate]
"""Estimates by their name."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a mini-batch, or some recorded tokens of a step.

    Attributes:
        step: of the run.
        spurious: 1, 0 or NaN where nobody judged, [N].
        inclusion: p, with which each token was recorded, float64 [N]; None = all are here.
    """

    step: int
    spurious: Tensor
    inclusion: Tensor | None = None

    def sum(self, values: Tensor) -> Estimate:
        """Σ values, [N]."""
        values, p = values.double(), self.inclusion
        if p is None:
            return Estimate(float(values.sum()), 0.0)
        weighted = values / p
        return Estimate(float(weighted.sum()), float((weighted.square() * (1 - p)).sum()))

    def touched(self, chosen: Tensor, gradient: Tensor) -> Sums:
        """What the chosen tokens are, and what they carry.

        Args:
            chosen: bool [N].
            gradient: the norm of each token's gradient if none is left out, [N].
        """
        judged, spurious = ~self.spurious.isnan(), self.spurious == 1
        masks = {
            "tokens": torch.ones_like(chosen),
            "touched": chosen,
            "judged": chosen & judged,
            "caught": chosen & spurious,
            "spurious": spurious,
            "free": gradient,
            "carried": torch.where(chosen, gradient, 0.0),
        }
        return Sums(Estimate, {name: self.sum(mask) for name, mask in masks.items()})


RATIOS = {
    "share": ("touched", "tokens"),
    "precision": ("caught", "judged"),
    "recall": ("caught", "spurious"),
    "carried": ("carried", "free"),
}
"""Columns of results, each a part of a whole."""


def add(total: Sums, more: Mapping[str, Estimate]) -> None:
    """Add sums of other tokens."""
    for name, estimate in more.items():
        total[name] = total[name].plus(estimate)


def ratios(sums: Sums) -> dict[str, float]:
    """The touched tokens and the columns of RATIOS, each with its standard error."""
    found = {"touched": sums["touched"]}
    found |= {name: sums[part].over(sums[whole]) for name, (part, whole) in RATIOS.items()}
    return {
        column: value
        for name, estimate in found.items()
        for column, value in ((name, estimate.value), (f"{name}_error", estimate.error))
    }
