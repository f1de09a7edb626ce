"""What is reported: evaluations with their summaries and settings, and how values are written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary

__all__ = [
    "UNKNOWN",
    "estimated",
    "facts",
    "flat",
    "own_settings",
    "percent",
    "percent_range",
    "percent_signed",
    "shared_settings",
    "tokens",
    "undecided_note",
]

UNKNOWN = "–"


def percent(value: float) -> str:
    """A share in percent, one decimal; a dash where it is nan."""
    return UNKNOWN if math.isnan(value) else f"{100 * value:.1f}"


def percent_range(low: float, high: float) -> str:
    """Two shares in percent."""
    return UNKNOWN if math.isnan(low) else f"{percent(low)} to {percent(high)}"


def percent_signed(value: float) -> str:
    """A difference of shares in percent points, with its sign."""
    return UNKNOWN if math.isnan(value) else f"{100 * value:+.1f}".replace("-", "−")


def tokens(value: float) -> str:
    """A length in whole tokens."""
    return UNKNOWN if math.isnan(value) else f"{value:,.0f}"


def estimated(estimate: Estimate | None, problems: int) -> str:
    """Its mean in percent, with how many problems it is about where it is not all of them."""
    if estimate is None:
        return UNKNOWN
    fewer = f" (of {estimate.problems:,})" if estimate.problems < problems else ""
    return percent(estimate.mean) + fewer


def undecided_note(summaries: Sequence[BenchmarkSummary]) -> list[str]:
    """How many responses are undecided and why; nothing if all are decided."""
    parts = [
        f"{summary.benchmark} {count:,} ({reason})"
        for summary in summaries
        for reason, count in summary.undecided_reasons.items()
    ]
    of = '"of" counts the problems with enough decided responses for a k.'
    return [f"Undecided, in no mean: {', '.join(parts)}. {of}"] if parts else []


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by dotted name, each as one line of text."""
    lines: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            lines |= flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) and value.strip() == value and value.isprintable() and value:
            lines[prefix + name] = value
        else:
            lines[prefix + name] = json.dumps(value, ensure_ascii=False, default=str)
    return lines


def shared_settings(entries: Sequence[BenchmarkResult]) -> dict[str, str]:
    """The settings that are the same for all."""
    first, *others = [flat(entry.settings) for entry in entries] or [{}]
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def own_settings(entry: BenchmarkResult, shared: Mapping[str, str]) -> dict[str, str]:
    """What an entry sets besides."""
    return {name: value for name, value in flat(entry.settings).items() if name not in shared}


def facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Model, versions, hardware and the like, one line of text each."""
    lines = {}
    for name, value in about.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            lines[name] = ", ".join(f"{key} {text}" for key, text in flat(value).items())
        elif name == "seconds":
            minutes, seconds = divmod(round(float(value)), 60)
            hours, minutes = divmod(minutes, 60)
            lines["time"] = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
        else:
            lines |= flat({name: value})
    return lines
