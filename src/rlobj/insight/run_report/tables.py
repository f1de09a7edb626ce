"""The tables of a report: the numbers of each run, its settings, its time."""

from __future__ import annotations

from collections.abc import Sequence

from rlobj.insight.numbers import Line, mean, percent, total
from rlobj.insight.outcomes import Outcome
from rlobj.insight.run_report.runs import Run
from rlobj.settings.layers import flattened

UNKNOWN = "–"
Table = dict[str, list[str]]
"""A row by its name: one cell for each run."""


def summary(runs: Sequence[Run]) -> Table:
    """What came out of each run, as at the end of its training."""
    outcomes = [Outcome(run.lines) for run in runs]
    window = min((outcome.window for outcome in outcomes if outcome.steps), default=1)
    columns = []
    for run, outcome in zip(runs, outcomes, strict=True):
        minutes, seconds = divmod(round(total(run.steps, "time/step")), 60)
        column = {"rule": run.rule} if len(runs) > 1 else {}
        column |= {"steps": f"{run.steps[-1]['step'] if run.steps else 0:,.0f}"}
        column |= outcome.measures(window)
        if minutes or seconds:
            column["time of all steps"] = f"{minutes:,} min {seconds} s"
        names = ", ".join(finding.name for finding in run.findings)
        columns.append(column | {"findings": names or ("none" if run.steps else "")})
    return _aligned(columns)


def _aligned(columns: Sequence[dict[str, str]]) -> Table:
    """The rows that some run has; a dash stands in those of the other runs."""
    longest_first = sorted(columns, key=len, reverse=True)
    names = dict.fromkeys(name for column in longest_first for name in column)
    rows = {name: [column.get(name) or UNKNOWN for column in columns] for name in names}
    return {name: cells for name, cells in rows.items() if {*cells} != {UNKNOWN}}


_BELOW = {
    "time/other": "other",
    "time/step": "step",
    "time/sampling_hidden": "sampling, beside training",
    "time/grading_hidden": "grading, beside sampling",
}
"""Times below the phases, and their rows. The last two pass while other phases run."""
_WORK = {
    "tokens/per_second": ("tokens/s without evaluating and writing", "{:,.0f}".format),
    "tokens/computed": ("tokens computed a step", "{:,.0f}".format),
    "tokens/useful_share": ("tokens that are no padding", percent),
    "tokens/skipped_share": ("tokens skipped in updates", percent),
}


def times(runs: Sequence[Run]) -> Table:
    """Seconds a step by phase with their share, the longest phase first, and how they were used."""
    timed = [[line for line in run.steps if line.get("time/step")] for run in runs]
    phases = {metric for run in runs for metric in run.metrics if metric.startswith("time/")}
    phases -= {"time/updating", *_BELOW}
    every = [line for steps in timed for line in steps]
    longest_first = sorted(sorted(phases), key=lambda metric: -total(every, metric))
    columns = []
    for steps in timed:
        column = {
            _BELOW.get(metric, metric.removeprefix("time/")): _seconds(steps, metric)
            for metric in (*longest_first, *_BELOW)
        }
        for metric, (name, text) in _WORK.items():
            value = mean(steps, metric)
            column[name] = "" if value is None else text(value)
        columns.append(column)
    return _aligned(columns)


def _seconds(steps: Sequence[Line], metric: str) -> str:
    spent, whole = total(steps, metric), total(steps, "time/step")
    return f"{spent / len(steps):.3f} s ({spent / whole:.1%})" if spent else ""


def different_settings(runs: Sequence[Run]) -> Table:
    """The settings that are not the same in all runs; all settings of a single run."""
    flat = [
        {path: "null" if value is None else str(value) for path, value in settings.items()}
        for settings in (flattened(run.settings) for run in runs)
    ]
    paths = dict.fromkeys(path for settings in flat for path in settings)
    rows = {path: [settings.get(path, UNKNOWN) for settings in flat] for path in paths}
    if len(runs) == 1:
        return rows
    absent = {UNKNOWN, "null", "{}"}  # what a run has in place of settings of another one
    return {path: cells for path, cells in rows.items() if len({*cells}) > 1 and {*cells} - absent}
