"""The numbers of an evaluation as results.json, and as the table on screen, in results.md and on
the page, with how to read it."""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, TypeVar

from pydantic_core import from_json, to_json

from rlobj.evaluation.graded import GradedBenchmark, average
from rlobj.reporting.markdown import escaped, markdown_table
from rlobj.rewards.functions import MAPPING
from rlobj.settings.layers import flattened

Value = TypeVar("Value")


def results_json(benchmarks: Sequence[GradedBenchmark], about: Mapping[str, Any]) -> dict[str, Any]:
    """Every number, ready for `json.dump`. Shares are fractions; unknown is null.

    `X_stderr` is over problems, sd/sqrt(n); `avg@n_stderr_sampling` is for these very problems.
    Intervals are at 95%. Undecided responses count as wrong everywhere; `avg@n_bounds` is avg@n if
    all of them are wrong, and if all are right. `pass@k_problems` is the number of problems with at
    least k responses, if it is not all of them. Where nothing says which responses are right,
    `reward` takes the place of `avg@n`, and there are no numbers of right responses.

    Args:
        benchmarks: what was evaluated.
        about: `model`, `versions`, `hardware`, `started` and what else belongs on top.
    """
    page = {**about, "settings": shared([benchmark.settings for benchmark in benchmarks])}
    page["results"] = {
        benchmark.benchmark: {**benchmark.numbers, "settings": dict(benchmark.settings)}
        for benchmark in benchmarks
    }
    if macro := average(benchmarks):
        page["macro_average"] = {measure.name: measure.value for measure in macro}
    return from_json(to_json(page, inf_nan_mode="null"))


def results_table(benchmarks: Sequence[GradedBenchmark]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: benchmarks across and the average of several; their numbers down."""
    measures = {benchmark.benchmark: benchmark.measures for benchmark in benchmarks}
    if macro := average(benchmarks):
        measures[f"mean of {len(benchmarks)}"] = macro
    columns = [{of.row: of.text for of in those if of.row} for those in measures.values()]
    longest_first = sorted(columns, key=len, reverse=True)
    rows = dict.fromkeys(row for column in longest_first for row in column)
    return ["", *measures], [[row, *(column.get(row, "") for column in columns)] for row in rows]


def reading_notes(benchmarks: Sequence[GradedBenchmark]) -> list[str]:
    """What the main numbers are, why some are missing, and what was not compared."""
    methods = dict.fromkeys(benchmark.estimate.interval.method for benchmark in benchmarks)
    rewarded = ", ".join(of.benchmark for of in benchmarks if not of.says_right)
    notes = [
        f"{'Means' if rewarded else 'Percent'} of n responses per problem. The interval is for "
        f"similar problems: {', '.join(methods)}."
    ]
    if rewarded:
        notes.append(
            f"The reward of {rewarded} does not say which responses are right, so there is no "
            f"avg@n, pass@k or maj@k. A function says it with a mapping such as {MAPPING}."
        )
    counted = "enter no mean reward" if rewarded else "count as wrong"
    names = {
        "undecided_reasons": f"Undecided responses {counted}",
        "wrong_causes": "Responses that are wrong without a comparison",
    }
    for name, what in names.items():
        parts = [
            f"{benchmark.benchmark} {count:,} ({reason.replace('_', ' ')})"
            for benchmark in benchmarks
            for reason, count in benchmark.numbers.get(name, {}).items()
        ]
        notes += [f"{what}: {', '.join(parts)}."] if parts else []
    return notes


def results_markdown(benchmarks: Sequence[GradedBenchmark], about: Mapping[str, Any]) -> str:
    """A table to paste, with notes on what its numbers mean and how they were measured.

    Args:
        benchmarks: what was evaluated.
        about: as for `results_json`.
    """
    common = shared([flat(benchmark.settings) for benchmark in benchmarks])
    settings = {"": common} | {
        f"{benchmark.benchmark}: ": flat(benchmark.settings, common) for benchmark in benchmarks
    }
    parts = [f"{name}{_listed(those)}" for name, those in settings.items() if those]
    notes = [
        *reading_notes(benchmarks),
        *([f"Settings: {'. '.join(parts)}."] if parts else []),
        *([f"{_listed(facts(about))}."] if about else []),
    ]
    table = markdown_table(*results_table(benchmarks))
    return "\n\n".join([table, *map(escaped, notes)]) + "\n"


def _listed(settings: Mapping[str, str]) -> str:
    return "; ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())


def shared(settings: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The settings that are the same in all."""
    first, *others = settings or [{}]
    return {k: v for k, v in first.items() if all(k in other and other[k] == v for other in others)}


def flat(settings: Mapping[str, Any], common: Container[str] = ()) -> dict[str, str]:
    """Settings by dotted name, each as one line of text, without the common ones."""
    settings_by_name = flattened(settings).items()
    return {name: _line(value) for name, value in settings_by_name if name not in common}


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
