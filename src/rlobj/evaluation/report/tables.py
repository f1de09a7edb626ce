"""results.json and results.md."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.report.entries import (
    estimated,
    facts,
    own_settings,
    percent,
    percent_range,
    shared_settings,
    tokens,
    undecided_note,
)
from rlobj.evaluation.summary import (
    BenchmarkResult,
    BenchmarkSummary,
    MacroAverage,
    macro_average,
)

__all__ = ["escaped", "markdown_table", "results_json", "results_markdown"]


def results_json(entries: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` asks these very problems again.
    Intervals are at 95 %. A pass@k that fewer problems allow than there are, since some
    responses are undecided or missing, comes with `pass@k_problems`.

    Args:
        entries: one per benchmark.
        about: `model`, `versions`, `hardware`, `started`, `seconds` and what else belongs on top.
    """
    first, *others = [entry.settings for entry in entries] or [{}]
    alike = {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }
    result = {
        **about,
        "settings": alike,
        "results": {entry.summary.benchmark: _benchmark(entry) for entry in entries},
    }
    if len(entries) > 1:
        result["macro_average"] = _macro(macro_average([entry.summary for entry in entries]))
    return _known(result)


def results_markdown(entries: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> str:
    """A table to paste, with a line of what its numbers mean and one of how they were measured.

    Args:
        entries: one per benchmark.
        about: as for `results_json`.
    """
    header = ["benchmark", "problems", "n", "avg@n", "95% interval", "pass@n", "maj@n"]
    header += ["truncated", "no answer", "undecided", "tokens"]
    summaries = [entry.summary for entry in entries]
    rows = [_row(summary) for summary in summaries]
    if len(entries) > 1:
        macro = macro_average(summaries)
        average = f"{percent(macro.accuracy)} ± {percent(macro.standard_errors.problems)}"
        interval = percent_range(*macro.interval[:2])
        rows.append([f"mean of {len(entries)}", "", "", average, interval, *[""] * 6])
    sampling = ", ".join(
        f"{summary.benchmark} ± {percent(summary.standard_errors.sampling)}"
        for summary in summaries
    )
    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    notes = [
        f"Percent. ± is the standard error over problems: this model on problems like these. On "
        f"these very problems, over samples alone: {sampling}. Intervals: {', '.join(methods)}.",
        *undecided_note(summaries),
        *_settings(entries, about),
    ]
    return "\n\n".join([markdown_table(header, rows), *map(escaped, notes)]) + "\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    first, *rest = [[escaped(cell) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))


def _benchmark(entry: BenchmarkResult) -> dict[str, Any]:
    summary, n = entry.summary, entry.summary.samples_per_problem
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
    every = {k: summary.pass_at_k(k) for k in range(1, n + 1)}
    numbers["pass@k"] = [estimate.mean for estimate in every.values() if estimate.values]
    lengths = summary.lengths
    return numbers | {
        "solve_all": summary.solve_all,
        "solve_none": summary.solve_none,
        "truncated": summary.truncated,
        "format": summary.format,
        "no_answer": summary.no_answer,
        "undecided": summary.undecided,
        "undecided_reasons": dict(summary.undecided_reasons),
        "length_mean": lengths.mean,
        "length_median": lengths.median,
        "length_right": lengths.right,
        "length_wrong": lengths.wrong,
        "settings": dict(entry.settings),
    }


def _estimate(name: str, estimate: Estimate, problems: int) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        name: estimate.mean,
        f"{name}_stderr": estimate.stderr,
        f"{name}_interval": list(estimate.interval[:2]),
    }
    return numbers | (
        {f"{name}_problems": estimate.problems} if estimate.problems < problems else {}
    )


def _macro(macro: MacroAverage) -> dict[str, Any]:
    return {
        "benchmarks": list(macro.benchmarks),
        "avg": macro.accuracy,
        "avg_stderr": macro.standard_errors.problems,
        "avg_stderr_sampling": macro.standard_errors.sampling,
        "avg_interval": list(macro.interval[:2]),
    }


def _row(summary: BenchmarkSummary) -> list[str]:
    n = summary.samples_per_problem
    best, vote = summary.pass_at.get(n), summary.maj_at.get(n)
    return [
        summary.benchmark,
        f"{summary.problems:,}",
        str(n),
        f"{percent(summary.accuracy)} ± {percent(summary.standard_errors.problems)}",
        percent_range(*summary.interval[:2]),
        estimated(best, summary.problems),
        estimated(vote, summary.problems),
        percent(summary.truncated),
        percent(summary.no_answer),
        f"{summary.undecided:,}",
        tokens(summary.lengths.mean),
    ]


def _settings(entries: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> list[str]:
    shared = shared_settings(entries)
    parts = [_listed(shared)] if shared else []
    for entry in entries:
        own = own_settings(entry, shared)
        parts += [f"{entry.summary.benchmark}: {_listed(own)}"] if own else []
    told = facts(about)
    settings = [f"Settings: {'. '.join(parts)}."] if parts else []
    return [*settings, *([f"{_listed(told)}."] if told else [])]


def _listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def escaped(text: str) -> str:
    """Text that Markdown and the table leave as it is, on one line."""
    for mark in ("\\", "|", "<", "`", "*", "_", "$"):
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())


def _known(value: Any) -> Any:
    """JSON has no not-a-number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _known(each) for key, each in value.items()}
    return [_known(each) for each in value] if isinstance(value, list | tuple) else value
