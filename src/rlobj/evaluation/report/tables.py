"""The table of an evaluation on the screen, in `results.md` and on its page, and how to read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.report.facts import facts, flat, shared
from rlobj.evaluation.report.numbers import UNKNOWN, number, number_range, percent
from rlobj.evaluation.summary import BenchmarkResult, BenchmarkSummary, MacroAverage, macro_average
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.rewards.functions import MAPPING

OF_RIGHT = (" right", "tokens, wrong", "without an answer")
"""The ends of the rows that mean nothing where nothing says which responses are right."""


def summary_table(summaries: Sequence[BenchmarkSummary]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmarks across and the average of several; their numbers down."""
    texts = {summary.benchmark: _measures(summary) for summary in summaries}
    if len(summaries) > 1 and math.isfinite((macro := macro_average(summaries)).mean):
        sampling, shares = macro.standard_errors.sampling, summaries[0].says_right
        texts[f"mean of {len(summaries)}"] = _headline(macro, sampling, shares)
    most_first = sorted(texts.values(), key=len, reverse=True)
    names = dict.fromkeys(name for measures in most_first for name in measures)
    rows = [[name, *(measures.get(name, "") for measures in texts.values())] for name in names]
    return ["", *texts], rows


def _measures(summary: BenchmarkSummary) -> dict[str, str]:
    """The numbers of a benchmark as text, shares in percent, by name."""
    right = {"avg@n if undecided ones were right": percent(summary.bounds[1])}
    estimates = {f"pass@{k}": estimate for k, estimate in summary.pass_at.items() if k > 1}
    estimates |= {f"maj@{k}": estimate for k, estimate in summary.maj_at.items()}
    rows = {
        "problems": f"{summary.problems:,}",
        "n": f"{summary.samples_per_problem:,}",
        **_headline(summary.estimate, summary.standard_errors.sampling, summary.says_right),
        **(right if summary.undecided else {}),
        **{name: _estimated(estimate, summary.problems) for name, estimate in estimates.items()},
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
    return {k: v for k, v in rows.items() if summary.says_right or not k.endswith(OF_RIGHT)}


def _headline(estimate: Estimate | MacroAverage, sampling: float, shares: bool) -> dict[str, str]:
    """avg@n or the mean reward, with its interval and errors; an error of 0 says only that all
    values are equal."""
    return {
        "avg@n" if shares else "mean reward": number(estimate.mean, shares),
        "95% interval, similar problems": number_range(*estimate.interval[:2], shares),
        "standard error, similar problems": number(estimate.stderr or math.nan, shares),
        "standard error, same problems": number(sampling or math.nan, shares),
    }


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
    counts = {
        f"Undecided responses {counted}": [summary.undecided_reasons for summary in summaries],
        "Responses that are wrong without a comparison": [s.wrong_causes for s in summaries],
    }
    notes = []
    for what, numbers in counts.items():
        parts = [
            f"{summary.benchmark} {count:,} ({reason.replace('_', ' ')})"
            for summary, by_reason in zip(summaries, numbers, strict=True)
            for reason, count in by_reason.items()
        ]
        notes += [f"{what}: {', '.join(parts)}."] if parts else []
    return [
        f"{'Means' if rewarded else 'Percent'} of n responses per problem. The interval is for "
        f"similar problems: {', '.join(methods)}.",
        *([about] if rewarded else []),
        *notes,
    ]


def _estimated(estimate: Estimate, problems: int) -> str:
    """The mean in percent, with the number of problems if it is not all of them."""
    fewer = f" (of {estimate.problems:,})" if estimate.problems < problems else ""
    return percent(estimate.mean) + fewer


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
