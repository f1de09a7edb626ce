"""`report`: runs compared on one page that needs no network."""

import json
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from rlobj.base.errors import counted
from rlobj.base.files import packaged, write_whole
from rlobj.insight.numbers import Line, total
from rlobj.insight.outcomes import Outcome
from rlobj.insight.page.rules import objective_of, rules_of
from rlobj.insight.run_report.figures import Plot, figures
from rlobj.insight.run_report.runs import Run, read_runs
from rlobj.reporting import visible
from rlobj.reporting.pages import fill, html_table, pack, render_page
from rlobj.runs.layout import run_paths
from rlobj.settings.layers import flattened

_asset = partial(packaged, "rlobj.insight.run_report")
_FILE = "report.html"
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
        rules = rules_of(objective_of(run.settings)).items()
        column = {"rules": ", ".join(f"{field} {rule}" for rule, field in rules)}
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


def times(runs: Sequence[Run]) -> Table:
    """Seconds a step by phase, the longest first, with their share of the step."""
    timed = [[line for line in run.steps if line.get("time/step")] for run in runs]
    phases = {metric for run in runs for metric in run.metrics if metric.startswith("time/")}
    beside = ("updating", "waiting", "sampling_hidden", "grading_hidden")
    phases -= {f"time/{name}" for name in beside}
    every = [line for steps in timed for line in steps]
    longest_first = sorted(sorted(phases), key=lambda metric: -total(every, metric))
    columns = [
        {metric.removeprefix("time/"): _seconds(steps, metric) for metric in longest_first}
        for steps in timed
    ]
    return _aligned(columns)


def _seconds(steps: Sequence[Line], metric: str) -> str:
    spent, whole = total(steps, metric), total(steps, "time/step")
    return f"{spent / len(steps):.3f} s ({spent / whole:.1%})" if spent else ""


def different_settings(runs: Sequence[Run]) -> Table:
    """The settings that are not the same in all runs."""
    flat = [
        {path: "null" if value is None else str(value) for path, value in settings.items()}
        for settings in (flattened(run.settings) for run in runs)
    ]
    paths = dict.fromkeys(path for settings in flat for path in settings)
    rows = {path: [settings.get(path, UNKNOWN) for settings in flat] for path in paths}
    absent = {UNKNOWN, "null", "{}"}  # what a run has in place of settings of another one
    return {path: cells for path, cells in rows.items() if len({*cells}) > 1 and {*cells} - absent}


def report(runs: Path | str | Iterable[Path | str], out: Path | str | None = None) -> Path:
    """Compare runs on one page: curves, numbers, findings, settings that differ, and times.

    Runs may be unfinished, and of different tasks and lengths. Nothing that their files name is
    imported.

    Args:
        runs: the folder of a run, or several of them; also logs of other trainers (`runs.logs`).
        out: the file; None = report.html in the folder of a single run, or beside the first of
            several runs.

    Returns:
        The file.

    Raises:
        ConfigError: a folder is no run, or no run has anything measured yet.
        RunError: the disk refused.

    Example:
        >>> import rlobj
        >>> run = rlobj.train("grpo", data="max-digits", settings={"training.steps": 3}).path
        >>> rlobj.report(run).name
        'report.html'
    """
    return write_report(read_runs(run_paths(runs)), out)


def write_report(runs: Sequence[Run], out: Path | str | None = None) -> Path:
    """As `report`, for runs that are read already."""
    first = runs[0].path
    path = Path(out) if out is not None else (first if len(runs) == 1 else first.parent) / _FILE
    write_whole(path, _page(runs))
    return path


def _page(runs: Sequence[Run]) -> bytes:
    known = figures(runs)
    drawn = [(plot, figure) for plot, figure in known if figure.constant is None]
    constant = [(p.title, f.constant) for p, f in known if f.constant is not None]
    several, first = len(runs) > 1, runs[0]
    title = f"Comparison of {len(runs)} runs" if several else first.label
    notes = [f"{run.label}: {visible(note, 400)}" for run in runs for note in run.notes]
    parts = {
        "title": escape(title),
        "notes": "".join(f"<p>{escape(note)}</p>" for note in notes),
        "summary": _table(summary(runs), runs),
        "findings": "".join(map(_findings, runs)),
        "differences": _differences(runs),
        "constant": escape(
            ", ".join(f"{title} {value:.4g}" for title, value in constant) or "none"
        ),
        "figures": "".join(_place(plot) for plot, _ in drawn),
        "times": _table(times(runs), runs),
    }
    data = [vars(figure) for _, figure in drawn]
    return render_page(
        title,
        fill(_asset("assets/report.html"), parts),
        styles=_asset("assets/report.css"),
        scripts=[_asset("assets/report.js")],
        data={},
        packed={"figures": pack(json.dumps(data, separators=(",", ":")).encode())},
        libraries=["echarts"],
    )


def _place(plot: Plot) -> str:
    """The place of a figure."""
    return (
        f"<figure id='figure-{plot.name}'><figcaption><h3 class=one-line>{escape(plot.title)}</h3>"
        f"<small>{escape(plot.unit)}</small></figcaption><div class=plot></div>"
        f"<small>{escape(plot.note)}</small></figure>"
    )


def _table(rows: Table, runs: Sequence[Run]) -> str:
    shown = (
        (visible(name, 80), [visible(cell, 300) for cell in cells]) for name, cells in rows.items()
    )
    return html_table((escape(run.label) for run in runs), shown)


def _findings(run: Run) -> str:
    if not run.findings:
        return ""
    items = "".join(
        f"<li><details><summary><b>{escape(finding.name)}</b>, {finding.when}: "
        f"{escape(visible(finding.evidence))}</summary><p>{escape(visible(finding.cure))}</p>"
        f"<p><small>{escape(finding.page)}</small></p></details></li>"
        for finding in run.findings
    )
    return f"<h3>{escape(run.label)}</h3><ul>{items}</ul>"


def _differences(runs: Sequence[Run]) -> str:
    rows = different_settings(runs)
    if not rows:
        return "" if len(runs) == 1 else "<p>All settings are equal.</p>"
    table = f"<div class=wide tabindex=0 role=region aria-label=Settings>{_table(rows, runs)}</div>"
    title = f"{counted(len(rows), 'setting')} that differ{'s' * (len(rows) == 1)}"
    return f"<details><summary><h2>{title}</h2></summary>{table}</details>"
