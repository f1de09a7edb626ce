"""What is behind a finding, from the tables of a run: the tokens that move the entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow

from rlobj.base.arrow import pc
from rlobj.insight.coverage import COLUMNS, Coverage
from rlobj.insight.diagnosis.findings import Finding
from rlobj.reporting import visible
from rlobj.runs.reading import Record

STEPS = 20
"""Tables of this many steps are read: those up to the last step at which the finding held."""
FEWEST = 30
"""With fewer tokens of a sample, it is unknown which of them move the entropy."""
MOST = 5
"""Tokens that are named."""


def entropy_drivers(
    record: Record, tokens: Mapping[int, float], until: int, sign: int
) -> list[str]:
    """The tokens and the quadrants of advantage and surprisal that move the entropy.

    To first order an update changes the entropy at a token by −weight·A·(entropy sensitivity).
    A token is surprising where its surprisal exceeds the entropy at its position.

    Args:
        record: of the run.
        tokens: the number of all tokens of each step, where it is known.
        until: the last step of interest.
        sign: −1 for a falling entropy, 1 for a rising one.

    Raises:
        ConfigError: the record cannot be read.
    """
    columns = ["text", "weight", "advantage", "entropy_sensitivity", "prob", "entropy"]
    steps = range(until - STEPS + 1, until + 1)
    rows = record.rows([*columns, *COLUMNS], steps=steps)
    tokens = {at: n for at, n in tokens.items() if at in steps}
    held = Coverage.of(record, rows, tokens)
    rows = rows.filter(pc.is_valid(rows["entropy_sensitivity"]))
    if len(rows) < FEWEST and not held.everything:
        of = f" of {math.fsum(tokens.values()):,.0f}" if tokens else ""
        few = f"{len(rows):,}{of} tokens were recorded and scored"
        return [f"tokens whose gradient moves it that way: unknown: {few}"]
    if not len(rows):
        return []
    change = pc.multiply(rows["weight"], rows["advantage"])
    change = pc.multiply(change, rows["entropy_sensitivity"])
    change = pc.multiply(pc.divide(change, rows["inclusion_probability"]), -float(sign))
    surprising = pc.greater(pc.negate(pc.ln(rows["prob"])), rows["entropy"])
    sign = pc.if_else(pc.greater(rows["advantage"], 0), "positive", "negative")
    kind = pc.if_else(surprising, "surprising", "likely")
    quadrants = pc.binary_join_element_wise(sign, kind, " ")
    table = pyarrow.table({"token": rows["text"], "quadrant": quadrants, "change": change})
    total = pc.sum(pc.max_element_wise(table["change"], 0.0)).as_py() or 1.0
    about = "" if held.everything else "≈ "
    largest = _largest(table, "token", total)
    named = ", ".join(f"[{visible(text, 24)}] {about}{share}" for text, share in largest)
    largest = _largest(table, "quadrant", total)
    divided = ", ".join(f"{name} {about}{share}" for name, share in largest)
    estimated = f", estimated from {len(rows):,} recorded tokens" if about else ""
    moving = f"tokens whose gradient moves it that way{estimated}: {named}"
    return [moving, f"by advantage and surprisal: {divided}"]


def _largest(table: Any, key: str, total: float) -> list[tuple[str, str]]:
    """The values of a column with the largest sums of `change`, and their share in words."""
    sums = table.group_by(key).aggregate([("change", "sum")])
    rows = sums.sort_by([("change_sum", "descending")]).slice(0, MOST).to_pylist()
    shares = [(row[key], row["change_sum"] / total) for row in rows]
    return [(name, f"{share:.0%}") for name, share in shares if share >= 0.01]


def details_of(
    run: Path, finding: Finding, tokens: Mapping[int, float], record: Record | None
) -> list[str]:
    """The lines below the evidence of a finding; none for most findings.

    Args:
        run: the run's folder.
        finding: of the run.
        tokens: see `entropy_drivers`.
        record: of the run; None = it is opened where it is read.

    Raises:
        ConfigError: the run has no records, or they cannot be read.
    """
    match finding.name:
        case "entropy-falling":
            return entropy_drivers(record or Record(run), tokens, finding.until, sign=-1)
        case "entropy-exploding":
            return entropy_drivers(record or Record(run), tokens, finding.until, sign=1)
    return []
