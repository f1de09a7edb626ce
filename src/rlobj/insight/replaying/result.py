"""Replay: what objectives and rules do to recorded tokens, as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.errors import Message, counted
from rlobj.objectives.clauses import EFFECTS
from rlobj.reporting import visible

_SHARES = {
    "share": ("touched", "tokens"),
    "precision": ("caught", "judged"),
    "recall": ("caught", "spurious"),
    "carried": ("carried", "free"),
}
"""The two sums that each share divides."""


@dataclass(frozen=True, repr=False)
class Replay:
    """What objectives and rules do to recorded tokens. All tables are pyarrow's; null = unknown.

    Attributes:
        source: what was read.
        steps: the steps that were read.
        population: the number of tokens of these steps.
        reproduced: tokens to which the recorded objective gives the recorded weight again, to the
            bit.
        objectives: one row for the recorded objective, each other and each rule: `touched` tokens
            (of a rule: those that it selects) with their `share`; `precision`, the share of the
            judged ones that is spurious; `recall`, their share of the spurious tokens; `carried`,
            their share of the gradient if no token is dropped; the number of tokens by effect; and
            of objectives the tokens that are `clipped`: with a weight, and without a gradient
            because a ratio is out of the surrogate's bounds; the sum of the tokens' `gradient`
            norms over that of the recorded one, and the parts of it that make tokens more likely,
            and that spurious tokens have.
        sweeps: one row for each rule and swept value.
        refused: why something cannot be replayed, by its name.
        notes: what should be known about the numbers.
        swept: the name of the swept number, or "".
    """

    source: str
    steps: Sequence[int]
    population: float
    reproduced: int
    objectives: Any
    sweeps: Any
    refused: Mapping[str, Message]
    notes: Sequence[Message]
    swept: str = ""

    @property
    def title(self) -> str:
        """What was read, and whether the recorded weights were found again."""
        steps = counted(len(self.steps), "step")
        steps += f" ({self.steps[0]} to {self.steps[-1]})" if len(self.steps) > 1 else ""
        source = visible(self.source, 200)
        title = f"{source}, full tables of {steps}: {self.population:,.0f} tokens"
        if self.reproduced == self.population:
            return f"{title}\nthe recorded objective gives all recorded weights again, to the bit"
        others = f"{self.population - self.reproduced:,.0f} tokens"
        return f"{title}\nthe recorded objective gives other weights than recorded to {others}"

    @property
    def remarks(self) -> list[Message]:
        """What cannot be replayed, and what should be known about the numbers."""
        names: dict[Message, list[str]] = {}
        for name, why in self.refused.items():
            names.setdefault(why, []).append(name[:60])
        refused = [
            Message(f"not replayed: {', '.join(of_reason)}: ", why)
            for why, of_reason in names.items()
        ]
        return [*refused, *self.notes]

    def to_json(self) -> str:
        """All of it as JSON, with control characters escaped and null for NaN."""
        tables = {name: getattr(self, name).to_pylist() for name in ("objectives", "sweeps")}
        return json.dumps({**vars(self), **tables}, indent=1)

    def __repr__(self) -> str:
        text = "\n".join([self.title, *self.remarks])
        return "\n".join(map(visible, text.split("\n")))


def row_of(sums: Mapping[str, float], recorded: float) -> dict[str, float]:
    """A row of the tables: counts and shares of an objective or a rule; NaN = unknown.

    Args:
        sums: over its tokens; of an objective, those of its gradient as well.
        recorded: Σ of the norms of the recorded objective's gradients.
    """

    def share(part: str, whole: str) -> float:
        return sums[part] / sums[whole] if sums[whole] else math.nan

    row = {"touched": sums["touched"]}
    row |= {name: share(*parts) for name, parts in _SHARES.items()}
    if "gradient" not in sums:
        return row
    row |= {name: sums[name] for name in ("kept", "clipped", *EFFECTS)}
    row["gradient"] = sums["gradient"] / (recorded or math.nan)
    row["gradient_up"] = share("gradient_up", "gradient")
    spurious = share("gradient_spurious", "gradient") if sums["spurious"] else math.nan
    return row | {"gradient_spurious": spurious}
