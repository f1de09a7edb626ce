"""Tallies of a replay: sums over the tokens of updates, and the rows of its tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch

from rlobj.insight.replaying.candidates import RECORDED
from rlobj.insight.replaying.planning import EFFECTS, Planned
from rlobj.insight.replaying.result import SHARES

TOP = 0.01
"""The share of the tokens whose part of the gradient is measured."""
_SIMILAR = ("weights", "gradients")
_PARTS = ("gradient_up", "gradient_top", "gradient_spurious")


class Tallies(defaultdict[tuple[Any, ...], defaultdict[str, float]]):
    """Sums over tokens by their name, of objectives (name, None), of rules (name, swept value) and
    of pairs (name, name)."""

    def __init__(self) -> None:
        super().__init__(lambda: defaultdict(float))

    def add(self, key: tuple[Any, ...], columns: Mapping[str, torch.Tensor]) -> None:
        """Add columns [N] of tokens."""
        for name, column in columns.items():
            self[key][name] += float(column.double().sum())

    def forget(self, name: str) -> None:
        """Remove an objective or a rule that cannot be replayed to the end."""
        for key in [key for key in self if name in key]:
            del self[key]

    def add_touched(
        self,
        key: tuple[Any, ...],
        touched: torch.Tensor,
        spurious: torch.Tensor,
        gradient: torch.Tensor,
    ) -> None:
        """Add what the touched or selected tokens are, and what they carry.

        Args:
            key: of an objective or a rule.
            touched: bool [N].
            spurious: 1, 0 or NaN where nobody judged, [N].
            gradient: the norm of each token's gradient if none is dropped, [N].
        """
        columns = {
            "tokens": torch.ones_like(touched),
            "touched": touched,
            "judged": touched & ~spurious.isnan(),
            "caught": touched & (spurious == 1),
            "spurious": spurious == 1,
            "free": gradient,
            "carried": torch.where(touched, gradient, 0.0),
        }
        self.add(key, columns)

    def add_planned(self, name: str, planned: Planned, spurious: torch.Tensor) -> None:
        """Add what an objective does to tokens."""
        self.add_touched((name, None), planned.effect >= 0, spurious, planned.free)
        norms = planned.gradient.abs()
        columns = {
            "kept": planned.weights != 0,
            **{effect: planned.effect == code for code, effect in enumerate(EFFECTS)},
            "clipped": planned.clipped,
            "equal": planned.equal,
            "gradient": norms,
            "gradient_up": planned.gradient.clamp(min=0),
            "gradient_top": norms.topk(math.ceil(TOP * len(norms))).values,
            "gradient_spurious": torch.where(spurious == 1, norms, 0.0),
        }
        self.add((name, None), columns)

    def add_pairs(
        self, touched: Mapping[str, torch.Tensor], planned: Mapping[str, Planned]
    ) -> None:
        """Add what each two have in common.

        Args:
            touched: the tokens that each touches or selects, bool [N].
            planned: the results of objectives.
        """
        vectors = {
            name: {"weights": _centred(plan.weights), "gradients": plan.gradient.double()}
            for name, plan in planned.items()
        }
        for a, b in combinations(touched, 2):
            both, either = touched[a] & touched[b], touched[a] | touched[b]
            self.add((a, b), {"both": both, "either": either})
            for what in _SIMILAR if {a, b} <= planned.keys() else ():
                first, second = vectors[a][what], vectors[b][what]
                size = (first @ first * (second @ second)).sqrt()
                if size != 0:  # also NaN
                    cosine = {what: first @ second / size, f"updates {what}": torch.ones(())}
                    self.add((a, b), cosine)

    # Rows of the results.

    def chosen(self, swept: bool) -> list[dict[str, Any]]:
        """One row for each objective and rule, or for each swept value of a rule."""
        rows = []
        for (name, value), tally in self.items():
            if isinstance(value, str) or (value is None) == swept:
                continue
            row = {"name": name, "value": value} if swept else {"name": name}
            row |= {"touched": tally["touched"]}
            row |= {name: _share(tally, *sums) for name, (_, *sums) in SHARES.items()}
            if not swept:
                counts = ("kept", "clipped", *EFFECTS)
                row |= {column: tally.get(column, math.nan) for column in counts}
                base = self[RECORDED, None].get("gradient") or math.nan
                row["gradient"] = tally.get("gradient", math.nan) / base
                row |= {part: _share(tally, part, "gradient") for part in _PARTS}
                if not tally["spurious"]:  # nobody judged, or there is none
                    row["gradient_spurious"] = math.nan
            rows.append(row)
        return rows

    def pairs(self) -> list[dict[str, Any]]:
        """One row for each pair."""
        rows = []
        for (a, b), tally in self.items():
            if isinstance(b, str):
                row = {"first": a, "second": b, "overlap": _share(tally, "both", "either")}
                means = {what: _share(tally, what, f"updates {what}") for what in _SIMILAR}
                rows.append(row | means)
        return rows


def _share(tally: Mapping[str, float], part: str, whole: str) -> float:
    """Σ part / Σ whole; nan if the whole is 0."""
    return tally[part] / tally[whole] if tally[whole] else math.nan


def _centred(weights: torch.Tensor) -> torch.Tensor:
    """Weights minus their mean, float64; exactly 0 if they are equal but for rounding."""
    centred = weights.double() - weights.double().mean()
    equal = not len(weights) or centred.abs().amax() <= 1e-6 * weights.abs().amax()
    return torch.zeros_like(centred) if equal else centred
