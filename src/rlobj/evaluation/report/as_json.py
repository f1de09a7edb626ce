"""`results.json`: every number of an evaluation with its standard error and settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import from_json, to_json

from rlobj.evaluation.estimators import Estimate
from rlobj.evaluation.report.facts import shared
from rlobj.evaluation.summary import BenchmarkResult, MacroAverage, macro_average

OF_RIGHT_JSON = {
    *("solve_all", "solve_none", "no_answer", "wrong_causes"),
    *("reward_bounds", "pass@k", "length_right", "length_wrong"),
}
"""The same of the names in results.json."""
COUNTS = ("solve_all", "solve_none", "truncated", "format", "no_answer", "undecided")


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
    page["results"] = {result.summary.benchmark: _benchmark(result) for result in results}
    summaries = [result.summary for result in results]
    if len(results) > 1 and math.isfinite((macro := macro_average(summaries)).mean):
        name = "avg" if results[0].summary.says_right else "reward"
        page["macro_average"] = {
            "benchmarks": list(macro.benchmarks),
            **_numbers(name, macro),
            f"{name}_stderr_sampling": macro.standard_errors.sampling,
        }
    return from_json(to_json(page, inf_nan_mode="null"))


def _benchmark(result: BenchmarkResult) -> dict[str, Any]:
    summary, n = result.summary, result.summary.samples_per_problem
    main = f"avg@{n}" if summary.says_right else "reward"
    numbers: dict[str, Any] = {
        "problems": summary.problems,
        "samples": n,
        "responses": summary.responses,
        **_numbers(main, summary.estimate),
        f"{main}_stderr_sampling": summary.standard_errors.sampling,
        f"{main}_interval_method": summary.interval.method,
        f"{main}_bounds": list(summary.bounds),
    }
    for name, estimates in (("pass", summary.pass_at), ("maj", summary.maj_at)):
        for k, estimate in estimates.items():
            numbers |= _numbers(f"{name}@{k}", estimate)
            if estimate.problems < summary.problems:
                numbers[f"{name}@{k}_problems"] = estimate.problems
    every = [summary.pass_at_k(k) for k in range(1, n + 1)]
    numbers |= {
        "pass@k": [estimate.mean for estimate in every if estimate.values],
        **{name: getattr(summary, name) for name in COUNTS},
        "undecided_reasons": dict(summary.undecided_reasons),
        "wrong_causes": dict(summary.wrong_causes),
        **{f"length_{name}": value for name, value in asdict(summary.lengths).items()},
        "settings": dict(result.settings),
    }
    says_right = summary.says_right
    return {k: v for k, v in numbers.items() if says_right or k not in OF_RIGHT_JSON}


def _numbers(name: str, estimate: Estimate | MacroAverage) -> dict[str, Any]:
    interval = list(estimate.interval[:2])
    return {name: estimate.mean, f"{name}_stderr": estimate.stderr, f"{name}_interval": interval}
