"""`report`: runs compared on one page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from rlobj.base.errors import counted
from rlobj.base.files import packaged, write_whole
from rlobj.insight.run_report.figures import Plot, figures
from rlobj.insight.run_report.runs import Run, read_runs
from rlobj.insight.run_report.tables import Table, different_settings, summary, times
from rlobj.reporting import visible
from rlobj.reporting.pages import fill, html_table, pack, render_page
from rlobj.runs.layout import run_paths

_asset = partial(packaged, "rlobj.insight.run_report")
_FILE = "report.html"


def report(
    runs: Path | str | Iterable[Path | str],
    out: Path | str | None = None,
) -> Path:
    """Compare runs on one page: curves, numbers, findings, settings that differ, and times.

    Runs may be unfinished, and of different tasks and lengths. Nothing that their files name is
    imported.

    Args:
        runs: the folder of a run, or several of them.
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
    drawn = figures(runs)
    several, first = len(runs) > 1, runs[0]
    title = f"Comparison of {len(runs)} runs" if several else first.rule or first.label
    notes = [f"{run.label}: {visible(note, 400)}" for run in runs for note in run.notes]
    parts = {
        "title": escape(title),
        "notes": "".join(f"<p>{escape(note)}</p>" for note in notes),
        "summary": _table(summary(runs), runs),
        "findings": "".join(map(_findings, runs)),
        "differences": _differences(runs),
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
        return "<p>All settings are equal.</p>"
    table = f"<div class=wide tabindex=0 role=region aria-label=Settings>{_table(rows, runs)}</div>"
    title = "Settings"
    if len(runs) > 1:
        title = f"{counted(len(rows), 'setting')} that differ{'s' * (len(rows) == 1)}"
    return f"<details><summary><h2>{title}</h2></summary>{table}</details>"
