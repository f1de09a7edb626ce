"""The table of an evaluation on the screen, in `results.md` and on its page, and how to read it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from rlobj.evaluation.numbers import UNKNOWN, number, number_range, percent
from rlobj.evaluation.report.facts import facts, flat, shared
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary, average_numbers
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.rewards.functions import MAPPING

HEADLINE = {
    "_interval": "95% interval, similar problems",
    "_stderr": "standard error, similar problems",
    "_stderr_sampling": "standard error, same problems",
}
"""Ends of the names of numbers that belong to avg@n or to the mean reward -> their rows."""
ROWS = {
    "solve_all": "problems, all responses right",
    "solve_none": "problems, no response right",
    "undecided": "responses, undecided",
    "truncated": "% of responses, cut at the limit",
    "no_answer": "% of responses, without an answer",
    "format": r"% of responses, with a \boxed answer",
    "length_mean": "tokens, mean",
    "length_median": "tokens, median",
    "length_right": "tokens, right",
    "length_wrong": "tokens, wrong",
}
"""Names of numbers -> their rows."""


def summary_table(summaries: Sequence[BenchmarkSummary]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmarks across and the average of several; their numbers down."""
    columns = {summary.benchmark: _column(summary.numbers) for summary in summaries}
    if average := average_numbers(summaries):
        columns[f"mean of {len(summaries)}"] = _column(average)
    most_first = sorted(columns.values(), key=len, reverse=True)
    names = dict.fromkeys(chain.from_iterable(most_first))
    return ["", *columns], [[row, *(c.get(row, "") for c in columns.values())] for row in names]


def _column(numbers: Mapping[str, Any]) -> dict[str, str]:
    """The rows of a benchmark or of an average as text, shares in percent."""
    main = next(name for name in numbers if name == "reward" or name.startswith("avg"))
    rows = {"problems": "problems", "samples": "n"}
    rows |= {main: "mean reward" if main == "reward" else "avg@n"}
    rows |= {f"{main}{end}": row for end, row in HEADLINE.items()}
    if numbers.get("undecided"):
        rows[f"{main}_bounds"] = "avg@n if undecided ones were right"
    at_k = (name for name in numbers if re.fullmatch(r"(pass|maj)@\d+", name) and name != "pass@1")
    rows |= {name: name for name in at_k} | ROWS
    return {row: _text(name, numbers) for name, row in rows.items() if name in numbers}


def _text(name: str, numbers: Mapping[str, Any]) -> str:
    value, shares = numbers[name], not name.startswith("reward")
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith("_interval"):
        return number_range(value[0], value[1], shares)
    if name.endswith("_bounds"):
        return percent(value[1])
    if name.startswith("length_"):
        return UNKNOWN if math.isnan(value) else f"{value:,.0f}"
    if "_stderr" in name:  # an error of 0 says only that all values are equal
        value = value or math.nan
    fewer = numbers.get(f"{name}_problems")
    return number(value, shares) + (f" (of {fewer:,})" if fewer else "")


def reading_notes(summaries: Sequence[BenchmarkSummary]) -> list[str]:
    """What the main numbers are, why some are missing, and what was not compared."""
    methods = dict.fromkeys(summary.interval.method for summary in summaries)
    rewarded = ", ".join(summary.benchmark for summary in summaries if not summary.says_right)
    about = (
        f"The reward of {rewarded} does not say which responses are right: mean rewards take the "
        "place of avg@n, and pass@k, maj@k and other numbers of right responses are left out. A "
        f"function says what is right with a mapping such as {MAPPING}."
    )
    counted = "enter no mean reward" if rewarded else "count as wrong"
    names = {
        "undecided_reasons": f"Undecided responses {counted}",
        "wrong_causes": "Responses that are wrong without a comparison",
    }
    notes = []
    for name, what in names.items():
        parts = [
            f"{summary.benchmark} {count:,} ({reason.replace('_', ' ')})"
            for summary in summaries
            for reason, count in summary.numbers.get(name, {}).items()
        ]
        notes += [f"{what}: {', '.join(parts)}."] if parts else []
    return [
        f"{'Means' if rewarded else 'Percent'} of n responses per problem. The interval is for "
        f"similar problems: {', '.join(methods)}.",
        *([about] if rewarded else []),
        *notes,
    ]


def results_markdown(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> str:
    """A table to paste, with notes on what its numbers mean and how they were measured.

    Args:
        results: one per benchmark.
        about: as for `results_json`.
    """
    summaries = [result.summary for result in results]
    notes = reading_notes(summaries) + _settings(results)
    notes += [f"{listed(facts(about))}."] if about else []
    table = markdown_table(*summary_table(summaries))
    return "\n\n".join([table, *map(escaped, notes)]) + "\n"


def _settings(results: Sequence[BenchmarkResult]) -> list[str]:
    common = shared([flat(result.settings) for result in results])
    settings = {f"{r.summary.benchmark}: ": flat(r.settings, common) for r in results}
    parts = [f"{name}{listed(those)}" for name, those in ({"": common} | settings).items() if those]
    return [f"Settings: {'. '.join(parts)}."] if parts else []


def listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
