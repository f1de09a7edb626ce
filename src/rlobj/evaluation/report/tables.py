"""results.json and results.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.report.measures import (
    facts,
    flat,
    macro_measures,
    measures,
    own_settings,
    percent,
    shared,
    undecided_note,
)
from rlobj.evaluation.summary import BenchmarkResult, MacroAverage, macro_average
from rlobj.reporting import escaped, markdown_table

COLUMNS = (
    *("problems", "n", "avg@n", "95% interval", "pass@n", "maj@n"),
    *("truncated", "no answer", "undecided", "tokens"),
)


COUNTS = ("solve_all", "solve_none", "truncated", "format", "no_answer", "undecided")


def results_json(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` is for these very problems.
    Intervals are at 95%. `pass@k_problems` is the number of problems with at least k decided
    responses, if it is not all of them.

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
        found["macro_average"] = _macro(macro_average([each.summary for each in results]))
    return _without_nan(found)


def results_markdown(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> str:
    """A table to paste, with notes on what its numbers mean and how they were measured.

    Args:
        results: one per benchmark.
        about: as for `results_json`.
    """
    summaries = [each.summary for each in results]
    rows = [_row(summary.benchmark, measures(summary)) for summary in summaries]
    if len(results) > 1:
        rows.append(_row(f"mean of {len(results)}", macro_measures(macro_average(summaries))))
    sampling = ", ".join(
        f"{summary.benchmark} ± {percent(summary.standard_errors.sampling)}"
        for summary in summaries
    )
    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    notes = [
        f"Percent. ± is the standard error for similar problems. Standard error for the same "
        f"problems, sampled again: {sampling}. Intervals: {', '.join(methods)}.",
        *undecided_note(summaries),
        *_settings(results),
        *([f"{_listed(facts(about))}."] if about else []),
    ]
    table = markdown_table(["benchmark", *COLUMNS], rows)
    return "\n\n".join([table, *map(escaped, notes)]) + "\n"


def _row(name: str, texts: Mapping[str, str]) -> list[str]:
    accuracy = {"avg@n": f"{texts['avg@n']} ± {texts['± problems']}"}
    return [name, *({**texts, **accuracy}.get(column, "") for column in COLUMNS)]


def _settings(results: Sequence[BenchmarkResult]) -> list[str]:
    common = shared([flat(each.settings) for each in results])
    parts = [_listed(common)] if common else []
    for each in results:
        own = own_settings(each.settings, common)
        parts += [f"{each.summary.benchmark}: {_listed(own)}"] if own else []
    return [f"Settings: {'. '.join(parts)}."] if parts else []


def _listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def _benchmark(result: BenchmarkResult) -> dict[str, Any]:
    summary, n = result.summary, result.summary.samples_per_problem
    numbers: dict[str, Any] = {
        "problems": summary.problems,
        "samples": n,
        "responses": summary.responses,
        f"avg@{n}": summary.accuracy,
        f"avg@{n}_stderr": summary.standard_errors.problems,
        f"avg@{n}_stderr_sampling": summary.standard_errors.sampling,
        f"avg@{n}_interval": list(summary.interval[:2]),
        f"avg@{n}_interval_method": summary.interval.method,
    }
    for name, estimates in (("pass", summary.pass_at), ("maj", summary.maj_at)):
        for k, estimate in estimates.items():
            numbers |= _estimate(f"{name}@{k}", estimate, summary.problems)
    every = [summary.pass_at_k(k) for k in range(1, n + 1)]
    return numbers | {
        "pass@k": [estimate.mean for estimate in every if estimate.values],
        **{name: getattr(summary, name) for name in COUNTS},
        "undecided_reasons": dict(summary.undecided_reasons),
        **{f"length_{name}": value for name, value in asdict(summary.lengths).items()},
        "settings": dict(result.settings),
    }


def _estimate(name: str, estimate: Estimate, problems: int) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        name: estimate.mean,
        f"{name}_stderr": estimate.stderr,
        f"{name}_interval": list(estimate.interval[:2]),
    }
    fewer = estimate.problems < problems
    return numbers | ({f"{name}_problems": estimate.problems} if fewer else {})


def _macro(macro: MacroAverage) -> dict[str, Any]:
    return {
        "benchmarks": list(macro.benchmarks),
        "avg": macro.accuracy,
        "avg_stderr": macro.standard_errors.problems,
        "avg_stderr_sampling": macro.standard_errors.sampling,
        "avg_interval": list(macro.interval[:2]),
    }


def _without_nan(value: Any) -> Any:
    """The value with null in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _without_nan(each) for key, each in value.items()}
    return [_without_nan(each) for each in value] if isinstance(value, list | tuple) else value
