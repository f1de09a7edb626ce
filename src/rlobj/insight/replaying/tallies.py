"""Tallies of a replay: sums over the tokens of updates, and the rows of its tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from rlobj.insight.replaying.candidates import RECORDED
from rlobj.insight.replaying.planning import EFFECTS, Planned
from rlobj.insight.replaying.result import SHARES

_PARTS = ("gradient_up", "gradient_spurious")


class Tallies(defaultdict[tuple[Any, ...], defaultdict[str, float]]):
    """Sums over tokens by their name, of objectives (name, None) and of rules (name, swept
    value)."""

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
            "gradient_spurious": torch.where(spurious == 1, norms, 0.0),
        }
        self.add((name, None), columns)

    # Rows of the results.

    def chosen(self, swept: bool) -> list[dict[str, Any]]:
        """One row for each objective and rule, or for each swept value of a rule."""
        rows = []
        for (name, value), tally in self.items():
            if (value is None) == swept:
                continue
            row = {"name": name, "value": value} if swept else {"name": name}
            row |= {"touched": tally["touched"]}
            row |= {name: _share(tally, *sums) for name, sums in SHARES.items()}
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


def _share(tally: Mapping[str, float], part: str, whole: str) -> float:
    """Σ part / Σ whole; nan if the whole is 0."""
    return tally[part] / tally[whole] if tally[whole] else math.nan
