"""How the numbers and settings of an evaluation are written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from rlobj.config.layers import flattened
from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.summary import BenchmarkSummary, MacroAverage

UNKNOWN = "–"
Value = TypeVar("Value")


def measures(summary: BenchmarkSummary) -> dict[str, str]:
    """The numbers of a benchmark as text, shares in percent, by name."""
    n, errors = summary.samples_per_problem, summary.standard_errors
    estimates = {f"pass@{k}": each for k, each in summary.pass_at.items()}
    estimates |= {f"maj@{k}": each for k, each in summary.maj_at.items()}
    estimates |= {"pass@n": summary.pass_at.get(n), "maj@n": summary.maj_at.get(n)}
    lengths = summary.lengths
    return {
        "problems": f"{summary.problems:,}",
        "n": f"{n:,}",
        "avg@n": percent(summary.accuracy),
        "95% interval": percent_range(*summary.interval[:2]),
        "± problems": percent(errors.problems),
        "± sampling": percent(errors.sampling),
        **{name: _estimated(each, summary.problems) for name, each in estimates.items()},
        "truncated": percent(summary.truncated),
        "no answer": percent(summary.no_answer),
        "in a box": percent(summary.format),
        "undecided": f"{summary.undecided:,}",
        "solved always, never": f"{summary.solve_all:,}, {summary.solve_none:,}",
        "tokens": _tokens(lengths.mean),
        "mean length": _tokens(lengths.mean, 1),
        "tokens: median, right, wrong": ", ".join(
            map(_tokens, (lengths.median, lengths.right, lengths.wrong))
        ),
    }


def macro_measures(macro: MacroAverage) -> dict[str, str]:
    """The numbers that an average over benchmarks has."""
    return {
        "avg@n": percent(macro.accuracy),
        "95% interval": percent_range(*macro.interval[:2]),
        "± problems": percent(macro.standard_errors.problems),
    }


def percent(value: float) -> str:
    """A share in percent with one decimal; a dash for nan."""
    return UNKNOWN if math.isnan(value) else f"{100 * value:.1f}"


def percent_range(low: float, high: float) -> str:
    """Two shares in percent."""
    return UNKNOWN if math.isnan(low) else f"{percent(low)} to {percent(high)}"


def percent_signed(value: float) -> str:
    """A difference of shares in percent points, with its sign."""
    return UNKNOWN if math.isnan(value) else f"{100 * value:+.1f}".replace("-", "−")


def undecided_note(summaries: Sequence[BenchmarkSummary]) -> list[str]:
    """A note on how many responses are undecided and why, if there are any."""
    parts = [
        f"{summary.benchmark} {count:,} ({reason})"
        for summary in summaries
        for reason, count in summary.undecided_reasons.items()
    ]
    of = '"of" counts the problems with enough decided responses for a k.'
    return [f"Undecided, in no mean: {', '.join(parts)}. {of}"] if parts else []


def shared(settings: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that are the same in all."""
    first, *others = settings or [{}]
    return {k: v for k, v in first.items() if all(k in each and each[k] == v for each in others)}


def own_settings(settings: Mapping[str, Any], common: Mapping[str, str]) -> dict[str, str]:
    """The settings of a benchmark that are not common, as text by dotted name."""
    return {name: text for name, text in flat(settings).items() if name not in common}


def flat(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings by dotted name, each as one line of text."""
    return {name: _line(value) for name, value in flattened(settings).items()}


def _line(value: Any) -> str:
    if isinstance(value, str) and value.strip() == value and value.isprintable() and value:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def facts(about: Mapping[str, Any]) -> dict[str, str]:
    """Model, versions, hardware and the like, one line of text each."""
    lines: dict[str, str] = {}
    for name, value in about.items():
        if isinstance(value, Mapping):
            lines[name] = ", ".join(f"{key} {text}" for key, text in flat(value).items())
        elif value is not None:
            lines |= flat({name: value})
    return lines


def _estimated(estimate: Estimate | None, problems: int) -> str:
    """The mean in percent, with the number of problems if it is not all of them."""
    if estimate is None:
        return UNKNOWN
    fewer = f" (of {estimate.problems:,})" if estimate.problems < problems else ""
    return percent(estimate.mean) + fewer


def _tokens(value: float, digits: int = 0) -> str:
    return UNKNOWN if math.isnan(value) else f"{value:,.{digits}f}"
