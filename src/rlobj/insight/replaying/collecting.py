"""What is added up over tokens: for each objective and step, each pair, each swept value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from rlobj.insight.replaying.candidates import RECORDED
from rlobj.insight.replaying.planned import EFFECTS, Planned
from rlobj.insight.replaying.sums import Estimate, Sums, Tokens, add, ratios

TOP = 0.01
"""The share of the tokens whose part of the gradient is measured."""
COUNTS = ("kept", *EFFECTS)
Row = dict[str, Any]


class Collected:
    """Sums over the tokens that were replayed so far.

    Attributes:
        single: of each objective or rule, by its name and the step.
        pairs: by two names.
        swept: by the name of a rule and the swept value.
        refused: why an objective or a rule cannot be replayed, by its name.
        notes: what should be known about the numbers, each once.
        equal: tokens to which the recorded objective gave the recorded weight.
        rows: pyarrow tables of single tokens, if they are kept.
    """

    def __init__(self) -> None:
        self.single: dict[str, dict[int, Sums]] = {}
        self.pairs: dict[tuple[str, str], Sums] = {}
        self.swept: dict[tuple[str, float], Sums] = {}
        self.refused: dict[str, str] = {}
        self.notes: dict[str, None] = {}
        self.equal = 0
        self.rows: list[Any] = []

    def add(self, name: str, tokens: Tokens, sums: Mapping[str, Estimate]) -> None:
        """Add sums of an objective or a rule."""
        add(self.single.setdefault(name, {}).setdefault(tokens.step, _empty()), sums)

    def add_value(self, name: str, value: float, sums: Mapping[str, Estimate]) -> None:
        """Add sums of a rule with a swept value."""
        add(self.swept.setdefault((name, value), _empty()), sums)

    def add_planned(self, name: str, tokens: Tokens, planned: Planned) -> None:
        """Add what an objective does to the tokens of a mini-batch."""
        norms = planned.gradient.abs()
        masks = {
            "kept": planned.weights != 0,
            **planned.effects,
            "gradient": norms,
            "gradient_up": planned.gradient.clamp(min=0),
            "gradient_top": norms.topk(math.ceil(TOP * len(norms))).values,
            "gradient_spurious": torch.where(tokens.spurious == 1, norms, 0.0),
        }
        self.add(name, tokens, tokens.touched(planned.touched, planned.free))
        self.add(name, tokens, {key: tokens.sum(mask) for key, mask in masks.items()})

    def add_pairs(
        self, tokens: Tokens, touched: Mapping[str, Tensor], planned: Mapping[str, Planned]
    ) -> None:
        """Add what each two objectives or rules have in common.

        Args:
            tokens: the tokens.
            touched: those that each of them touches or selects, bool [N].
            planned: the results of objectives.
        """
        weights = {name: _centred(each.weights) for name, each in planned.items()}
        gradients = {name: each.gradient.double() for name, each in planned.items()}
        for a, b in combinations(touched, 2):
            found = {
                "both": tokens.sum(touched[a] & touched[b]),
                "either": tokens.sum(touched[a] | touched[b]),
            }
            for what, columns in (("weights", weights), ("gradients", gradients)):
                if a in columns and b in columns:
                    x, y = columns[a], columns[b]
                    for key, product in (("ab", x @ y), ("aa", x @ x), ("bb", y @ y)):
                        found[f"{what} {key}"] = Estimate(float(product))
            add(self.pairs.setdefault((a, b), _empty()), found)

    def refuse(self, name: str, reason: str) -> None:
        """Remove an objective or a rule that cannot be replayed."""
        self.refused[name] = reason
        self.single.pop(name, None)
        self.pairs = {names: sums for names, sums in self.pairs.items() if name not in names}
        self.swept = {key: sums for key, sums in self.swept.items() if name != key[0]}

    # Rows of the results.

    def objectives(self) -> list[Row]:
        """One row for each objective and rule."""
        return [self._row(name, list(steps)) for name, steps in self.single.items()]

    def steps(self) -> list[Row]:
        """One row for each of them and each step."""
        return [
            {"step": step, **self._row(name, [step])}
            for name, steps in self.single.items()
            for step in steps
        ]

    def _row(self, name: str, steps: list[int]) -> Row:
        own, recorded = _empty(), _empty()
        for step in steps:
            add(own, self.single[name][step])
            add(recorded, self.single[RECORDED][step])
        row: Row = {"name": name, **ratios(own)}
        row |= {key: own[key].value if key in own else math.nan for key in COUNTS}
        row["gradient"] = own["gradient"].over(recorded["gradient"]).value
        for part in ("gradient_up", "gradient_top", "gradient_spurious"):
            row[part] = own[part].over(own["gradient"]).value
        return row

    def both(self) -> list[Row]:
        """One row for each pair."""
        rows = []
        for (first, second), sums in self.pairs.items():
            overlap = sums["both"].over(sums["either"])
            row: Row = {"first": first, "second": second}
            row |= {"overlap": overlap.value, "overlap_error": overlap.error}
            for what in ("weights", "gradients"):
                both, a, b = (sums[f"{what} {key}"].value for key in ("ab", "aa", "bb"))
                row[what] = both / math.sqrt(a * b) if a and b else math.nan
            rows.append(row)
        return rows

    def values(self) -> list[Row]:
        """One row for each swept value of each rule."""
        return [
            {"rule": name, "value": value, **ratios(sums)}
            for (name, value), sums in self.swept.items()
        ]


def _empty() -> Sums:
    return Sums(Estimate)


def _centred(weights: Tensor) -> Tensor:
    """Weights minus their mean, float64; exactly 0 if they are equal but for rounding."""
    centred = weights.double() - weights.double().mean()
    equal = centred.abs().amax() <= 1e-6 * weights.abs().amax() if len(weights) else True
    return torch.zeros_like(centred) if equal else centred
