"""Sums, means and shares of metrics over the steps of a run, and their texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Line = Mapping[str, Any]
"""A line of metrics.jsonl."""
Z95 = 1.959964
"""Half-width of a 95% interval in standard errors."""


def total(lines: Sequence[Line], name: str) -> float:
    """The sum of a metric over lines; lines without it count 0."""
    return math.fsum(line.get(name) or 0.0 for line in lines)


def mean(lines: Sequence[Line], name: str) -> float | None:
    """The mean of a metric over the lines that have it; None if no line has."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return math.fsum(values) / len(values) if values else None


def share_in_metrics(lines: Sequence[Line], name: str) -> float | None:
    """The token-weighted mean of a metric over steps; None if a step with tokens lacks it."""
    steps = [line for line in lines if line.get("tokens/step")]
    if not steps or any(line.get(name) is None for line in steps):
        return None
    tokens = total(steps, "tokens/step")
    return math.fsum(line[name] * line["tokens/step"] for line in steps) / tokens


def tokens_by_step(lines: Sequence[Line], step: int | None = None) -> dict[int, float]:
    """The number of tokens of each step, or of one, as metrics.jsonl counts them."""
    counts = [(line["step"], line.get("tokens/step")) for line in lines]
    return {at: n for at, n in counts if n is not None and step in (None, at)}


def share(part: float, whole: float) -> str:
    """A count and its share of another: `358 (0.092%)`."""
    return f"{part:,.0f} ({percent(part / whole)})" if part and whole else f"{part:,.0f}"


def percent(value: float) -> str:
    """A share with two digits: `0.092%`."""
    value = 100 * value
    digits = 1 if 99 < value < 100 else max(0, min(1 - math.floor(math.log10(value or 10)), 4))
    return f"{value:.{digits}f}%"


def without_nan(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with None for NaN."""
    return [{k: None if v != v else v for k, v in row.items()} for row in rows]
