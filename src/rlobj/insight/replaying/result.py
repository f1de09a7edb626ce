"""Replay: what objectives and rules do to recorded tokens, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.errors import counted
from rlobj.insight.outcomes import percent
from rlobj.reporting import visible
from rlobj.reporting.figures import Figure, Line

_SHOWN = {
    "share": "share of the tokens",
    "precision": "precision",
    "recall": "recall",
    "carried": "share of the gradient",
}


@dataclass(frozen=True, repr=False)
class Replay:
    """What objectives and rules do to recorded tokens. All tables are pyarrow's; null = unknown.

    On full tables all numbers are exact. On records they are estimates: each token counts
    1 / inclusion_probability, and a column `NAME_error` has one standard error of `NAME`.

    Attributes:
        source: what was read.
        exact: full tables were read.
        steps: the steps that were read.
        population: the number of tokens of these steps, maybe an estimate.
        reproduced: tokens to which the recorded objective gives the recorded weight again, to the
            bit; None for records.
        objectives: one row for the recorded objective, each other and each rule: `touched` tokens
            (of a rule: those that it selects) with their `share`; `precision`, the share of the
            judged ones that is spurious; `recall`, their share of the spurious tokens; `carried`,
            their share of the gradient if no token is left out; the number of tokens by effect; and
            of objectives the sum of the tokens' `gradient` norms over that of the recorded one, and
            the parts of it that make tokens more likely, that 1% of the tokens have, and that
            spurious tokens have.
        pairs: of each two: `overlap`, the tokens that both touch over those that either touches;
            the correlation of the `weights` within updates; and the cosine of the `gradients` by
            the logits.
        sweeps: one row for each rule and swept value.
        by_step: the table `objectives` for each step.
        tokens: if asked for, one row per token, with what each objective does to it.
        refused: why something cannot be replayed, by its name.
        notes: what should be known about the numbers.
        swept: the name of the swept number, or "".
    """

    source: str
    exact: bool
    steps: Sequence[int]
    population: float
    reproduced: int | None
    objectives: Any
    pairs: Any
    sweeps: Any
    by_step: Any
    tokens: Any
    refused: Mapping[str, str]
    notes: Sequence[str]
    swept: str = ""

    @property
    def title(self) -> str:
        """What was read."""
        steps = counted(len(self.steps), "step")
        steps += f" ({self.steps[0]} to {self.steps[-1]})" if len(self.steps) > 1 else ""
        kind = "full tables" if self.exact else "records"
        about = "" if self.exact else "≈ "
        return (
            f"{visible(self.source, 200)}, {kind} of {steps}: {about}{self.population:,.0f} tokens"
        )

    @property
    def proof(self) -> str:
        """Whether the recorded objective gives the recorded weights again; "" for records."""
        if self.reproduced is None:
            return ""
        if self.reproduced == self.population:
            return "the recorded objective gives all recorded weights again, to the bit"
        return (
            f"the recorded objective gives other weights than the recorded ones to "
            f"{self.population - self.reproduced:,.0f} tokens"
        )

    @property
    def remarks(self) -> list[str]:
        """What cannot be replayed, and what should be known about the numbers."""
        refused = [f"{visible(name, 60)}: {why}" for name, why in self.refused.items()]
        return [*(f"not replayed: {each}" for each in refused), *self.notes]

    def to_json(self) -> str:
        """All of it but `tokens` as JSON, with control characters escaped and null for NaN."""
        names = ("source", "exact", "steps", "population", "reproduced", "swept")
        plain = {name: getattr(self, name) for name in names}
        for name in ("objectives", "pairs", "sweeps", "by_step"):
            plain[name] = getattr(self, name).to_pylist()
        return json.dumps({**plain, "refused": self.refused, "notes": self.notes}, indent=1)

    def __repr__(self) -> str:
        rows = [*self.objectives.to_pylist(), *self.sweeps.to_pylist()]
        lines = [
            f"{visible(label(row, self.swept), 200)}: {in_words(row, self.exact)}" for row in rows
        ]
        return "\n".join(line for line in [self.title, self.proof, *lines, *self.remarks] if line)

    def figure(self) -> Figure:
        """A chart of the sweep; without one, the share of touched tokens by step."""
        if not len(self.sweeps):
            curves = {row["name"]: [] for row in self.by_step.to_pylist()}
            for row in self.by_step.to_pylist():
                curves[row["name"]].append(row)
            lines = [_line(name, "step", "share", rows) for name, rows in curves.items()]
            return Figure("replay", "Touched tokens", "share of tokens", lines)
        rows = self.sweeps.to_pylist()
        by_rule: dict[str, list[Any]] = {}
        for row in rows:
            by_rule.setdefault(row["rule"], []).append(row)
        lines = [
            _line(f"{title}: {rule}" if len(by_rule) > 1 else title, "value", column, chosen, run)
            for run, (rule, chosen) in enumerate(by_rule.items())
            for column, title in _SHOWN.items()
            if any(row[column] is not None for row in chosen)
        ]
        values = [row["value"] for row in rows]
        wide = min(values) > 0 and max(values) >= 10 * min(values)
        title = visible(", ".join(by_rule), 48)
        return Figure("sweep", title, "share", lines, x=self.swept, log_x=wide)


def _line(name: str, x: str, y: str, rows: Sequence[Mapping[str, Any]], run: int = 0) -> Line:
    """A curve, with a band of one standard error if the numbers are estimates."""
    values, errors = [row[y] for row in rows], [row[f"{y}_error"] or 0.0 for row in rows]
    ends: dict[str, Any] = {}
    if any(errors):
        for end, sign in (("low", -1), ("high", 1)):
            both = zip(values, errors, strict=True)
            ends[end] = [None if v is None else v + sign * e for v, e in both]
    return Line(name, [row[x] for row in rows], values, run=run, **ends)


def label(row: Mapping[str, Any], swept: str) -> str:
    """The name of a row: of an objective or a rule, or the swept value."""
    return row["name"] if "name" in row else f"{swept} = {row['value']:g}"


def in_words(row: Mapping[str, Any], exact: bool) -> str:
    """The main numbers of a row."""
    parts = [f"{count(row, exact)} tokens"]
    for name, text in _SHOWN.items():
        if row[name] is not None:
            parts.append(f"{text} {share(row, name)}")
    return ", ".join(parts)


def count(row: Mapping[str, Any], exact: bool) -> str:
    """The number of tokens, with one standard error if it is an estimate."""
    error = f" ± {row['touched_error']:,.0f}" if row["touched_error"] else ""
    return f"{'' if exact else '≈ '}{row['touched']:,.0f}{error}"


def share(row: Mapping[str, Any], name: str) -> str:
    """A share, with one standard error if it is an estimate; a dash if it is unknown."""
    value, error = row[name], row.get(f"{name}_error")
    if value is None:
        return "–"
    return percent(value) + (f" ± {100 * error:.1g}" if error else "")
