"""`report`: runs compared on one page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from rlobj.base.errors import RunError, counted, reported
from rlobj.base.files import packaged, write_whole
from rlobj.insight.run_report.figures import Plot, figures, finding_id
from rlobj.insight.run_report.runs import Run, read_runs
from rlobj.insight.run_report.tables import Table, different_settings, summary, times
from rlobj.reporting import Figure, figure_data, save_figure, visible
from rlobj.reporting.figures import COLORS, DASHES, dash_of, styles
from rlobj.reporting.pages import fill, html_table, pack, render_page
from rlobj.runs.layout import run_paths

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
        with reported(RunError, f"cannot write to {folder}", OSError):
            folder.mkdir(parents=True, exist_ok=True)
        for _, _, figure in figures(runs):
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
        "first": _card(*drawn[0][1:]) if drawn else "",
        "summary": _table(summary(runs), runs),
        "findings": "".join(map(_findings, range(len(runs)), runs)),
        "differences": _differences(runs),
        "sections": _sections(drawn[1:]),
        "links": "".join(
            f"<a href='#{_anchor(name)}'>{escape(name)}</a>"
            for name in dict.fromkeys(section for section, _, _ in drawn[1:])
        ),
        "times": _table(times(runs), runs),
    }
    data = json.dumps(figure_data([figure for _, _, figure in drawn]), separators=(",", ":"))
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
        f"{_run_swatch(number)}<b class=one-line>{escape(run.label)}</b>"
        f"<code class=one-line>{escape(run.rule)}</code></label>"
        for number, run in enumerate(runs)
    )
    return f"<fieldset><legend>runs</legend>{boxes}</fieldset>"


def _swatch(color: str, dash: Sequence[int] = ()) -> str:
    pattern = " ".join(map(str, dash))
    return (
        "<svg class=swatch viewBox='0 0 24 8' aria-hidden=true><path d='M0 4H24' "
        f"stroke='{color}' stroke-dasharray='{pattern}'/></svg>"
    )


def _run_swatch(number: int) -> str:
    return _swatch(COLORS[number % len(COLORS)], DASHES[dash_of(number) % len(DASHES)])


def _table(rows: Table, runs: Sequence[Run]) -> str:
    head = (f"{_run_swatch(i)} {escape(run.label)}" for i, run in enumerate(runs))
    shown = (
        (visible(name, 80), [visible(cell, 300) for cell in cells]) for name, cells in rows.items()
    )
    return html_table(head, shown)


def _findings(number: int, run: Run) -> str:
    if not run.findings:
        return ""
    items = "".join(
        f"<li id='{escape(finding_id(number, finding.name))}'><details>"
        f"<summary><b>{escape(finding.name)}</b>, {finding.when}: "
        f"{escape(visible(finding.evidence))}</summary>"
        + f"<p>{escape(visible(finding.cure))}</p>"
        + f"<p><small>{escape(finding.page)}</small></p></details></li>"
        for finding in run.findings
    )
    return f"<h3>{_run_swatch(number)} {escape(run.label)}</h3><ul>{items}</ul>"


def _differences(runs: Sequence[Run]) -> str:
    rows = different_settings(runs)
    if not rows:
        return "<p>All settings are equal.</p>"
    table = f"<div class=wide tabindex=0 role=region aria-label=Settings>{_table(rows, runs)}</div>"
    title = "Settings"
    if len(runs) > 1:
        title = f"{counted(len(rows), 'setting')} that differ{'s' * (len(rows) == 1)}"
    return f"<details><summary><h2>{title}</h2></summary>{table}</details>"


def _sections(drawn: Sequence[tuple[str, Plot, Figure]]) -> str:
    sections: dict[str, list[str]] = {}
    for section, plot, figure in drawn:
        sections.setdefault(section, []).append(_card(plot, figure))
    return "".join(
        f"<section id='{_anchor(name)}'><h2>{escape(name)}</h2>"
        f"<div class='figures side-by-side'>{''.join(cards)}</div></section>"
        for name, cards in sections.items()
    )


def _card(plot: Plot, figure: Figure) -> str:
    """The place of a figure, and its legend with the last values."""
    rows = []
    for line, (color, dash) in zip(figure.lines, styles(figure), strict=True):
        look = _swatch(COLORS[color % len(COLORS)], DASHES[dash % len(DASHES)])
        name, last = escape(line.name), next((y for y in reversed(line.y) if y is not None), None)
        value = "–" if last is None else f"{last:.4g}"
        rows.append(f"{look}<span class=one-line title='{name}'>{name}</span>{value}")
    for target in figure.targets:
        rows.append(f"{_swatch('#888', (2, 2))}{escape(target.text)}: {target.y:.4g}")
    for mark in figure.marks:
        look = _swatch(COLORS[mark.run % len(COLORS)], (1, 2))
        rows.append(f"{look}<a href='#{escape(mark.link)}'>{escape(mark.text)}</a>")
    return (
        f"<figure id='figure-{plot.name}'><figcaption><h3 class=one-line>{escape(plot.title)}</h3>"
        f"<small>{escape(plot.unit)}&nbsp;</small></figcaption><div class=plot></div>"
        f"<ul class=legend>{''.join(f'<li>{row}</li>' for row in rows)}</ul>"
        f"<small>{escape(plot.note)}</small></figure>"
    )


def _anchor(section: str) -> str:
    return section.lower().replace(" ", "-")
