"""Sums, means and shares of metrics over the steps of a run, and their texts."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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


def listed(steps: Collection[int]) -> str:
    """Some steps in words: their numbers, or of many how many they are, the first and the last."""
    first, last = min(steps), max(steps)
    if len(steps) == last - first + 1:
        return f"steps {first} to {last}" if first < last else f"step {first}"
    if len(steps) < 9:
        return f"steps {', '.join(map(str, sorted(steps)))}"
    return f"{len(steps)} steps from {first} to {last}"


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
