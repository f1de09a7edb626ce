"""`report`: runs compared on one page that needs no network.

The tables of a report: the numbers of each run, its settings, its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError, counted
from rlobj.base.files import packaged, write_whole
from rlobj.base.yaml import packaged_table
from rlobj.config.layers import flattened
from rlobj.config.run_folder import MEASURES, Measure, run_paths
from rlobj.insight.inspecting import Line, mean, percent, total
from rlobj.insight.run_report.runs import Plot, Run, figures, finding_id, read_runs
from rlobj.reporting import Figure, figure_data, save_figure, visible
from rlobj.reporting.figures import COLORS, DASHES, dash_of, fill, html_table, pack, render_page

_TABLE = packaged_table("rlobj.insight.run_report", "tables.yaml")
_LAST = 10
"""Steps at the end of a run that its last numbers are means of."""

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


def times(runs: Sequence[Run]) -> Table:
    """Seconds a step by phase with their share, the longest phase first, and how they were used."""
    timed = [[line for line in run.steps if line.get("time/step")] for run in runs]
    below = _TABLE["below"]
    phases = {
        metric: sum(total(steps, metric) for steps in timed)
        for metric in dict.fromkeys(metric for run in runs for metric in run.metrics)
        if metric.startswith("time/") and metric not in ("time/updating", *below)
    }
    order = [*sorted(phases, key=lambda metric: -phases[metric]), *below]
    rows = {
        below.get(metric, metric.removeprefix("time/")): [_seconds(each, metric) for each in timed]
        for metric in order
    }
    for metric, name in _TABLE["means"].items():
        found = [mean(steps, metric) for steps in timed]
        text = percent if metric.endswith("share") else "{:,.3g}".format
        text = "{:,.0f}".format if metric == "tokens/per_second" else text
        rows[name] = [UNKNOWN if each is None else text(each) for each in found]
    return {name: cells for name, cells in rows.items() if set(cells) != {UNKNOWN}}


def _seconds(steps: Sequence[Line], metric: str) -> str:
    spent, whole = total(steps, metric), total(steps, "time/step")
    return f"{spent / len(steps):.3f} s ({spent / whole:.1%})" if spent else UNKNOWN


def different_settings(runs: Sequence[Run]) -> Table:
    """The settings that are not the same in all runs; all settings of a single run."""
    flat = [flattened(run.settings) for run in runs]
    paths = dict.fromkeys(path for each in flat for path in each)
    rows = {path: [_setting(each, path) for each in flat] for path in paths}
    if len(runs) == 1:
        return rows
    absent = {UNKNOWN, "null", "{}"}  # what a run has in place of settings of another one
    return {path: cells for path, cells in rows.items() if len({*cells}) > 1 and {*cells} - absent}


def _numbers(run: Run) -> dict[str, str]:
    """The same rows for each run; "" where it has no number."""
    steps = run.steps
    rewarded = [line for line in steps if line.get("reward/mean") is not None]
    best = max(rewarded, key=lambda line: line["reward/mean"], default=None)
    found = {
        "steps": f"{steps[-1]['step']:,.0f}" if steps else "0",
        **{name: text for each in MEASURES for name, text in _held_out(run, each).items()},
        "reward of the best step": (
            f"{best['reward/mean']:.3f}, step {best['step']:,.0f}" if best else ""
        ),
    }
    for name, (metric, form) in _TABLE["mean of last"].items():
        number = mean(steps[-_LAST:], metric)
        found[f"{name}, last {_LAST} steps"] = "" if number is None else f"{number:{form}}"
    for name, (part, whole) in _TABLE["share of all"].items():
        some, count = total(steps, part), total(steps, whole)
        found[name] = percent(some / count) if some and count else ""
    minutes, seconds = divmod(round(total(steps, "time/step")), 60)
    found["time"] = f"{minutes:,} min {seconds} s" if minutes or seconds else ""
    names = ", ".join(each.name for each in run.findings)
    found["findings"] = names or ("none" if steps else "")
    return found


def _held_out(run: Run, measure: Measure) -> dict[str, str]:
    """The last and the highest value of a run."""
    lines = [line for line in run.lines if line.get(measure.key) is not None]
    best = max(lines, key=lambda line: line[measure.key], default=None)
    return {
        f"{measure.name}, {which}": ""
        if line is None
        else f"{line[measure.key]:.3f} ± {measure.error(line):.3f}, step {line['step']:,.0f}"
        for which, line in (("last", lines[-1] if lines else None), ("best", best))
    }


def _setting(settings: Mapping[str, Any], path: str) -> str:
    if path not in settings:
        return UNKNOWN
    value = settings[path]
    return "null" if value is None else str(value)


_asset = partial(packaged, "rlobj.insight.run_report")
_FILE = "report.html"


def report(
    runs: Path | str | Iterable[Path | str],
    out: Path | str | None = None,
    figures: Path | str | None = None,
) -> Path:
    """Compare runs on one page: curves, numbers, findings, settings that differ, and times.

    Runs may be unfinished, and of different tasks and lengths. Nothing that their files name is
    imported.

    Args:
        runs: the folder of a run, or several of them.
        out: the file; None = report.html in the folder of a single run, or beside the first of
            several runs.
        figures: a folder, made if needed, that gets each figure as SVG and PNG; None = none.

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
    return write_report(read_runs(run_paths(runs)), out, figures)


def write_report(
    runs: Sequence[Run], out: Path | str | None = None, folder: Path | str | None = None
) -> Path:
    """As `report`, for runs that are read already."""
    first = runs[0].path
    path = Path(out) if out is not None else (first if len(runs) == 1 else first.parent) / _FILE
    write_whole(path, _page(runs))
    if folder is not None:
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot write to {folder}: {error}") from error
        for _, figure in figures(runs):
            for suffix in (".svg", ".png"):
                save_figure(figure, folder / f"{figure.name}{suffix}")
    return path


def _page(runs: Sequence[Run]) -> bytes:
    drawn = figures(runs)
    several, first = len(runs) > 1, runs[0]
    title = f"Comparison of {len(runs)} runs" if several else first.rule or first.label
    parts = {
        "title": escape(title),
        "runs": _run_boxes(runs) if several else "",
        "notes": "".join(
            f"<p>{escape(f'{run.label}: {visible(note, 400)}')}</p>"
            for run in runs
            for note in run.notes
        ),
        "count": "several" if several else "one",
        "first": _card(*drawn[0]) if drawn else "",
        "summary": _table(summary(runs), runs),
        "findings": "".join(map(_findings, range(len(runs)), runs)),
        "differences": _differences(runs),
        "sections": _sections(drawn[1:]),
        "links": "".join(
            f"<a href='#{_anchor(name)}'>{escape(name)}</a>"
            for name in dict.fromkeys(plot.section for plot, _ in drawn[1:])
        ),
        "times": _table(times(runs), runs),
    }
    data = json.dumps(figure_data([figure for _, figure in drawn]), separators=(",", ":"))
    return render_page(
        title,
        fill(_asset("assets/report.html"), parts),
        styles=_asset("assets/report.css"),
        scripts=[_asset("assets/report.js")],
        data={},
        packed={"figures": pack(data.encode())},
        libraries=["echarts"],
    )


def _run_boxes(runs: Sequence[Run]) -> str:
    """Boxes that show or hide the curves of runs."""
    boxes = "".join(
        f"<label class=chip><input type=checkbox name=run value={number} checked>"
        f"{_swatch(number)}<b class=one-line>{escape(run.label)}</b>"
        f"<code class=one-line>{escape(run.rule)}</code></label>"
        for number, run in enumerate(runs)
    )
    return f"<fieldset><legend>runs</legend>{boxes}</fieldset>"


def _swatch(number: int) -> str:
    color, dash = COLORS[number % len(COLORS)], DASHES[dash_of(number) % len(DASHES)]
    pattern = " ".join(map(str, dash))
    return (
        "<svg class=swatch viewBox='0 0 24 8' aria-hidden=true><path d='M0 4H24' "
        f"stroke='{color}' stroke-dasharray='{pattern}'/></svg>"
    )


def _table(rows: Table, runs: Sequence[Run]) -> str:
    head = (f"{_swatch(i)} {escape(run.label)}" for i, run in enumerate(runs))
    shown = (
        (visible(name, 80), [visible(each, 300) for each in row]) for name, row in rows.items()
    )
    return html_table(head, shown)


def _findings(number: int, run: Run) -> str:
    if not run.findings:
        return ""
    items = "".join(
        f"<li id='{escape(finding_id(number, each.name))}'><details>"
        f"<summary><b>{escape(each.name)}</b>, {each.when}: {escape(visible(each.evidence))}"
        "</summary>"
        + "".join(f"<p>{escape(visible(line))}</p>" for line in (*each.details, each.cure))
        + f"<p><small>{escape(each.page)}</small></p></details></li>"
        for each in run.findings
    )
    return f"<h3>{_swatch(number)} {escape(run.label)}</h3><ul>{items}</ul>"


def _differences(runs: Sequence[Run]) -> str:
    rows = different_settings(runs)
    if not rows:
        return "<p>All settings are equal.</p>"
    table = f"<div class=wide tabindex=0 role=region aria-label=Settings>{_table(rows, runs)}</div>"
    title = (
        f"{counted(len(rows), 'setting')} that differ{'s' * (len(rows) == 1)}"
        if len(runs) > 1
        else "Settings"
    )
    return f"<details><summary><h2>{title}</h2></summary>{table}</details>"


def _sections(drawn: Sequence[tuple[Plot, Figure]]) -> str:
    sections: dict[str, list[str]] = {}
    for plot, figure in drawn:
        sections.setdefault(plot.section, []).append(_card(plot, figure))
    return "".join(
        f"<section id='{_anchor(name)}'><h2>{escape(name)}</h2>"
        f"<div class=figures>{''.join(cards)}</div></section>"
        for name, cards in sections.items()
    )


def _card(plot: Plot, figure: Figure) -> str:
    """The place of a figure, as high as it will be when it is drawn."""
    rows = len(figure.lines) + len(figure.marks) + len(figure.targets)
    return (
        f"<figure id='figure-{plot.name}' style='--rows:{rows}'>"
        f"<figcaption><h3 class=one-line>{escape(plot.title)}</h3>"
        f"<small>{escape(plot.unit)}&nbsp;</small></figcaption>"
        f"<div class=plot></div><ul class=legend></ul><small>{escape(plot.note)}</small></figure>"
    )


def _anchor(section: str) -> str:
    return section.lower().replace(" ", "-")
