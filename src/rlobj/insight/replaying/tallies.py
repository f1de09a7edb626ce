"""Sums over tokens, with the error that a sample of the tokens has, and the rows made of them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from rlobj.insight.replaying.candidates import RECORDED
from rlobj.insight.replaying.planned import EFFECTS, Planned

TOP = 0.01
"""The share of the tokens whose part of the gradient is measured."""
FEW = 5
"""With fewer sampled tokens that a rule selects wrongly, its precision is unknown."""
_SHARES = {
    "share": ("touched", "tokens"),
    "precision": ("caught", "judged"),
    "recall": ("caught", "spurious"),
    "carried": ("carried", "free"),
}
_PARTS = ("gradient_up", "gradient_top", "gradient_spurious")


class Tally:
    """Sums over tokens, by their name.

    Attributes:
        value: Σ x/p over recorded tokens, each recorded with probability p.
        variance: of this estimate, Σ x²·(1 − p)/p²; 0 if all tokens are recorded.
    """

    def __init__(self) -> None:
        self.value = defaultdict[str, float](float)
        self.variance = defaultdict[str, float](float)

    def add(self, columns: Mapping[str, Tensor], p: Tensor | None = None) -> None:
        """Add columns [N] of tokens that are recorded with probability p [N]; None = 1."""
        for name, column in columns.items():
            weighted = column.double() if p is None else column.double() / p
            self.value[name] += float(weighted.sum())
            if p is not None:
                self.variance[name] += float((weighted.square() * (1 - p)).sum())

    def share(self, part: str, whole: str) -> tuple[float, float]:
        """R = Σ part / Σ whole, where the part is some of the tokens of the whole, and its error.

        The variance is that of Σ (x_part − R·x)/Σ x, to first order.
        """
        total = self.value[whole]
        if not total:
            return math.nan, 0.0
        share, variance = self.value[part] / total, self.variance[part]
        variance += share**2 * self.variance[whole] - 2 * share * variance
        return share, math.sqrt(max(variance, 0.0)) / abs(total)


class Tallies(defaultdict[tuple[Any, ...], Tally]):
    """Tallies of objectives (name,), of rules (name, swept value) and of pairs (name, name)."""

    def __init__(self) -> None:
        super().__init__(Tally)

    def forget(self, name: str) -> None:
        """Remove an objective or a rule that cannot be replayed to the end."""
        for key in [key for key in self if name in key]:
            del self[key]

    def add_touched(
        self,
        key: tuple[Any, ...],
        touched: Tensor,
        spurious: Tensor,
        gradient: Tensor,
        p: Tensor | None = None,
    ) -> None:
        """Add what the touched or selected tokens are, and what they carry.

        Args:
            key: of an objective or a rule.
            touched: bool [N].
            spurious: 1, 0 or NaN where nobody judged, [N].
            gradient: the norm of each token's gradient if none is left out, [N].
            p: with which each token is recorded, [N].
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
        self[key].add(columns, p)

    def add_planned(self, name: str, planned: Planned, spurious: Tensor) -> None:
        """Add what an objective does to tokens."""
        self.add_touched((name, None), planned.effect >= 0, spurious, planned.free)
        norms = planned.gradient.abs()
        columns = {
            "kept": planned.weights != 0,
            **{effect: planned.effect == code for code, effect in enumerate(EFFECTS)},
            "equal": planned.equal,
            "gradient": norms,
            "gradient_up": planned.gradient.clamp(min=0),
            "gradient_top": norms.topk(math.ceil(TOP * len(norms))).values,
            "gradient_spurious": torch.where(spurious == 1, norms, 0.0),
        }
        self[name, None].add(columns)

    def add_pairs(
        self, touched: Mapping[str, Tensor], planned: Mapping[str, Planned], p: Tensor | None = None
    ) -> None:
        """Add what each two have in common.

        Args:
            touched: the tokens that each touches or selects, bool [N].
            planned: the results of objectives.
            p: with which each token is recorded, [N].
        """
        vectors = {
            name: {"weights": _centred(each.weights), "gradients": each.gradient.double()}
            for name, each in planned.items()
        }
        for a, b in combinations(touched, 2):
            both, either = touched[a] & touched[b], touched[a] | touched[b]
            self[a, b].add({"both": both, "either": either}, p)
            for what in ("weights", "gradients") if {a, b} <= planned.keys() else ():
                x, y = vectors[a][what], vectors[b][what]
                size = (x @ x * (y @ y)).sqrt()
                if size != 0:  # also NaN
                    self[a, b].add({what: x @ y / size, f"updates {what}": torch.ones(())})

    # Rows of the results.

    def unseen(self) -> list[str]:
        """Notes about rules that may select many tokens that are not in the record."""
        few = [key[0] for key, tally in self.items() if tally.value.get("seen", FEW) < FEW]
        return [
            f"{name}: its precision is unknown, because it selects fewer than {FEW} tokens of the "
            "sample of untouched tokens: others may be missing"
            for name in few
        ]

    def chosen(self, swept: bool) -> list[dict[str, Any]]:
        """One row for each objective and rule, or for each swept value of a rule."""
        rows = []
        for (name, value), tally in self.items():
            if isinstance(value, str) or (value is None) == swept:
                continue
            row = {"name": name, "value": value} if swept else {"name": name}
            row |= {"touched": tally.value["touched"]}
            row |= {"touched_error": math.sqrt(tally.variance["touched"])}
            for column, (part, whole) in _SHARES.items():
                row[column], row[f"{column}_error"] = tally.share(part, whole)
            if tally.value.get("seen", FEW) < FEW:
                row["precision"] = math.nan
            if not swept:
                row |= {each: tally.value.get(each, math.nan) for each in ("kept", *EFFECTS)}
                base = self[RECORDED, None].value.get("gradient") or math.nan
                row["gradient"] = tally.value.get("gradient", math.nan) / base
                row |= {part: tally.share(part, "gradient")[0] for part in _PARTS}
                if not tally.value["spurious"]:  # nobody judged, or there is none
                    row["gradient_spurious"] = math.nan
            rows.append(row)
        return rows

    def pairs(self) -> list[dict[str, Any]]:
        """One row for each pair."""
        rows = []
        for (a, b), tally in self.items():
            if isinstance(b, str):
                row: dict[str, Any] = {"first": a, "second": b}
                row["overlap"], row["overlap_error"] = tally.share("both", "either")
                for what in ("weights", "gradients"):
                    row[what], _ = tally.share(what, f"updates {what}")
                rows.append(row)
        return rows


def _centred(weights: Tensor) -> Tensor:
    """Weights minus their mean, float64; exactly 0 if they are equal but for rounding."""
    centred = weights.double() - weights.double().mean()
    equal = not len(weights) or centred.abs().amax() <= 1e-6 * weights.abs().amax()
    return torch.zeros_like(centred) if equal else centred
