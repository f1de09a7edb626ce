"""How the numbers and settings of an evaluation are written; results.json and results.md."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from rlobj.config.layers import flattened
from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary, MacroAverage, macro_average
from rlobj.reporting.markdown import escaped, markdown_table

UNKNOWN = "–"
COUNTS = ("solve_all", "solve_none", "truncated", "format", "no_answer", "undecided")
Value = TypeVar("Value")


def summary_table(summaries: Sequence[BenchmarkSummary]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmarks across and the average of several; their numbers down."""
    texts = {summary.benchmark: _measures(summary) for summary in summaries}
    if len(summaries) > 1:
        macro = macro_average(summaries)
        texts[f"mean of {len(summaries)}"] = _headline(macro, macro.standard_errors.sampling)
    most_first = sorted(texts.values(), key=len, reverse=True)
    names = dict.fromkeys(name for own in most_first for name in own)
    return ["", *texts], [[name, *(own.get(name, "") for own in texts.values())] for name in names]


def _measures(summary: BenchmarkSummary) -> dict[str, str]:
    """The numbers of a benchmark as text, shares in percent, by name."""
    right = {"avg@n if undecided ones were right": percent(summary.bounds[1])}
    estimates = {f"pass@{k}": each for k, each in summary.pass_at.items() if k > 1}
    estimates |= {f"maj@{k}": each for k, each in summary.maj_at.items()}
    return {
        "problems": f"{summary.problems:,}",
        "n": f"{summary.samples_per_problem:,}",
        **_headline(summary.estimate, summary.standard_errors.sampling),
        **(right if summary.undecided else {}),
        **{name: _estimated(each, summary.problems) for name, each in estimates.items()},
        "problems, all responses right": f"{summary.solve_all:,}",
        "problems, no response right": f"{summary.solve_none:,}",
        "responses, undecided": f"{summary.undecided:,}",
        "% of responses, cut at the limit": percent(summary.truncated),
        "% of responses, without an answer": percent(summary.no_answer),
        r"% of responses, with a \boxed answer": percent(summary.format),
        **{
            f"tokens, {name}": UNKNOWN if math.isnan(value) else f"{value:,.0f}"
            for name, value in asdict(summary.lengths).items()
        },
    }


def _headline(found: Estimate | MacroAverage, sampling: float) -> dict[str, str]:
    """avg@n with its interval and errors; an error of 0 says only that all shares are equal."""
    return {
        "avg@n": percent(found.mean),
        "95% interval": percent_range(*found.interval[:2]),
        "standard error, similar problems": percent(found.stderr or math.nan),
        "standard error, same problems": percent(sampling or math.nan),
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
    return [f"Undecided responses count as wrong: {', '.join(parts)}."] if parts else []


def shared(settings: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that are the same in all."""
    first, *others = settings or [{}]
    return {k: v for k, v in first.items() if all(k in each and each[k] == v for each in others)}


def flat(settings: Mapping[str, Any], common: Container[str] = ()) -> dict[str, str]:
    """Settings by dotted name, each as one line of text, without the common ones."""
    found = flattened(settings).items()
    return {name: _line(value) for name, value in found if name not in common}


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


def _estimated(estimate: Estimate, problems: int) -> str:
    """The mean in percent, with the number of problems if it is not all of them."""
    fewer = f" (of {estimate.problems:,})" if estimate.problems < problems else ""
    return percent(estimate.mean) + fewer


def results_json(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` is for these very problems.
    Intervals are at 95%. Undecided responses count as wrong everywhere; `avg@n_bounds` is avg@n if
    all of them are wrong, and if all are right. `pass@k_problems` is the number of problems with at
    least k responses, if it is not all of them.

    Args:
        results: one per benchmark.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
    """
    found = {
        **about,
        "settings": shared([each.settings for each in results]),
        "results": {each.summary.benchmark: _benchmark(each) for each in results},
    }
    if len(results) > 1:
        macro = macro_average([each.summary for each in results])
        found["macro_average"] = {
            "benchmarks": list(macro.benchmarks),
            **_numbers("avg", macro),
            "avg_stderr_sampling": macro.standard_errors.sampling,
        }
    return from_json(to_json(found, inf_nan_mode="null"))


def results_markdown(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> str:
    """A table to paste, with notes on what its numbers mean and how they were measured.

    Args:
        results: one per benchmark.
        about: as for `results_json`.
    """
    summaries = [each.summary for each in results]
    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    notes = [
        "Percent of n responses per problem. The interval is for similar "
        f"problems: {', '.join(methods)}.",
        *undecided_note(summaries),
        *_settings(results),
        *([f"{_listed(facts(about))}."] if about else []),
    ]
    table = markdown_table(*summary_table(summaries))
    return "\n\n".join([table, *map(escaped, notes)]) + "\n"


def _settings(results: Sequence[BenchmarkResult]) -> list[str]:
    common = shared([flat(each.settings) for each in results])
    own = {f"{each.summary.benchmark}: ": flat(each.settings, common) for each in results}
    parts = [f"{name}{_listed(those)}" for name, those in ({"": common} | own).items() if those]
    return [f"Settings: {'. '.join(parts)}."] if parts else []


def _listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _benchmark(result: BenchmarkResult) -> dict[str, Any]:
    summary, n = result.summary, result.summary.samples_per_problem
    numbers: dict[str, Any] = {
        "problems": summary.problems,
        "samples": n,
        "responses": summary.responses,
        **_numbers(f"avg@{n}", summary.estimate),
        f"avg@{n}_stderr_sampling": summary.standard_errors.sampling,
        f"avg@{n}_interval_method": summary.interval.method,
        f"avg@{n}_bounds": list(summary.bounds),
    }
    for name, estimates in (("pass", summary.pass_at), ("maj", summary.maj_at)):
        for k, estimate in estimates.items():
            numbers |= _numbers(f"{name}@{k}", estimate)
            if estimate.problems < summary.problems:
                numbers[f"{name}@{k}_problems"] = estimate.problems
    every = [summary.pass_at_k(k) for k in range(1, n + 1)]
    return numbers | {
        "pass@k": [estimate.mean for estimate in every if estimate.values],
        **{name: getattr(summary, name) for name in COUNTS},
        "undecided_reasons": dict(summary.undecided_reasons),
        **{f"length_{name}": value for name, value in asdict(summary.lengths).items()},
        "settings": dict(result.settings),
    }


def _numbers(name: str, estimate: Estimate | MacroAverage) -> dict[str, Any]:
    return {
        name: estimate.mean,
        f"{name}_stderr": estimate.stderr,
        f"{name}_interval": list(estimate.interval[:2]),
    }
