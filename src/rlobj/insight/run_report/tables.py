"""The tables of a report: the numbers of each run, its settings, its time."""

from __future__ import annotations

from collections.abc import Sequence

from rlobj.insight.numbers import Line, mean, percent, total
from rlobj.insight.run_report.runs import Run
from rlobj.runs.metrics import MEASURES, Measure
from rlobj.settings.layers import flattened

UNKNOWN = "–"
Table = dict[str, list[str]]
"""A row by its name: one cell for each run."""


def summary(runs: Sequence[Run]) -> Table:
    """The last and the best numbers of each run; rows that no run has are left out."""
    columns = [_numbers(run) for run in runs]
    rows = {name: [column[name] or UNKNOWN for column in columns] for name in columns[0]}
    if len(runs) > 1:
        rows = {"rule": [run.rule or UNKNOWN for run in runs]} | rows
    return {name: cells for name, cells in rows.items() if set(cells) != {UNKNOWN}}


LAST = 10
"""Steps at the end of a run that its last numbers are means of."""
_LAST_MEANS = {
    "reward": ("reward/mean", ".3f"),
    "accuracy of samples": ("reward/accuracy", ".3f"),
    "entropy, nats": ("policy/entropy", ".3g"),
    "response length, tokens": ("response/length_mean", ",.1f"),
    "turns": ("turns/mean", ".2f"),
}
"""Row -> metric and its format."""
_SHARES = {
    "dropped tokens": ("tokens/dropped", "tokens/step"),
    "spurious tokens": ("spurious/tokens", "tokens/step"),
    "precision of the rule": ("spurious/caught", "spurious/dropped"),
    "recall of the rule": ("spurious/caught", "spurious/tokens"),
}
"""Row -> a metric whose sum over all steps is shown as a share of that of another one."""


def _numbers(run: Run) -> dict[str, str]:
    """The same rows for each run; "" where it has no number."""
    steps = run.steps
    rewarded = [line for line in steps if line.get("reward/mean") is not None]
    best = max(rewarded, key=lambda line: line["reward/mean"], default=None)
    rows = {"steps": f"{steps[-1]['step']:,.0f}" if steps else "0"}
    for measure in MEASURES:
        rows |= _held_out(run, measure)
    rows["reward of the best step"] = (
        f"{best['reward/mean']:.3f}, step {best['step']:,.0f}" if best else ""
    )
    for name, (metric, form) in _LAST_MEANS.items():
        number = mean(steps[-LAST:], metric)
        rows[f"{name}, last {LAST} steps"] = "" if number is None else f"{number:{form}}"
    for name, (part, whole) in _SHARES.items():
        some, count = total(steps, part), total(steps, whole)
        rows[name] = percent(some / count) if some and count else ""
    minutes, seconds = divmod(round(total(steps, "time/step")), 60)
    rows["time of all steps"] = f"{minutes:,} min {seconds} s" if minutes or seconds else ""
    names = ", ".join(finding.name for finding in run.findings)
    rows["findings"] = names or ("none" if steps else "")
    return rows


def _held_out(run: Run, measure: Measure) -> dict[str, str]:
    """The last and the highest value of a run."""
    lines, text = [line for line in run.lines if line.get(measure.key) is not None], measure.text
    best = max(lines, key=lambda line: line[measure.key], default=None)
    return {
        f"{measure.name}, {which}": ""
        if line is None
        else f"{text(line[measure.key])} ± {text(measure.error(line))}, step {line['step']:,.0f}"
        for which, line in (("last", lines[-1] if lines else None), ("best", best))
    }


_BELOW = {
    "time/other": "other",
    "time/step": "step",
    "time/sampling_hidden": "sampling, beside training",
    "time/grading_hidden": "grading, beside sampling",
}
"""Times below the phases, and their rows. The last two pass while other phases run."""


def times(runs: Sequence[Run]) -> Table:
    """Seconds a step by phase with their share, the longest phase first, and how they were used."""
    timed = [[line for line in run.steps if line.get("time/step")] for run in runs]
    phases = {
        metric: sum(total(steps, metric) for steps in timed)
        for metric in dict.fromkeys(metric for run in runs for metric in run.metrics)
        if metric.startswith("time/") and metric not in ("time/updating", *_BELOW)
    }
    longest_first = sorted(phases, key=lambda metric: -phases[metric])
    rows: Table = {}
    for metric in (*longest_first, *_BELOW):
        name = _BELOW.get(metric, metric.removeprefix("time/"))
        rows[name] = [_seconds(steps, metric) for steps in timed]
    for metric, name, text in (
        ("tokens/per_second", "tokens/s without evaluating and writing", "{:,.0f}".format),
        ("tokens/computed", "tokens computed a step", "{:,.0f}".format),
        ("tokens/shared_share", "of them where prompts are shared", percent),
        ("tokens/useful_share", "tokens that are no padding", percent),
        ("tokens/rank_balance", "largest load over mean load", "{:,.3g}".format),
        ("tokens/skipped_share", "tokens skipped in updates", percent),
        ("tokens/skipped_logits_share", "logits skipped in updates", percent),
    ):
        means = [mean(steps, metric) for steps in timed]
        rows[name] = [UNKNOWN if value is None else text(value) for value in means]
    return {name: cells for name, cells in rows.items() if set(cells) != {UNKNOWN}}


def _seconds(steps: Sequence[Line], metric: str) -> str:
    spent, whole = total(steps, metric), total(steps, "time/step")
    return f"{spent / len(steps):.3f} s ({spent / whole:.1%})" if spent else UNKNOWN


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
