"""`results.json`: every number of an evaluation with its standard error and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json, to_json

from rlobj.evaluation.report.facts import shared
from rlobj.evaluation.summary import BenchmarkResult, average_numbers


def results_json(results: Sequence[BenchmarkResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` is for these very problems.
    Intervals are at 95%. Undecided responses count as wrong everywhere; `avg@n_bounds` is avg@n if
    all of them are wrong, and if all are right. `pass@k_problems` is the number of problems with at
    least k responses, if it is not all of them. Where nothing says which responses are right,
    `reward` takes the place of `avg@n`, and there are no numbers of right responses.

    Args:
        results: one per benchmark.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
    """
    page = {**about, "settings": shared([result.settings for result in results])}
    summaries = [result.summary for result in results]
    page["results"] = {
        result.summary.benchmark: {
            **result.summary.numbers,
            "settings": dict(result.settings),
        }
        for result in results
    }
    if average := average_numbers(summaries):
        page["macro_average"] = average
    return from_json(to_json(page, inf_nan_mode="null"))
