"""RUN/report.html: a run's courses and phases as one page without scripts or other files."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlobj_cli.report import TIMES, metric_series, phases_of, shares_of, times_of
from rlobj_cli.screen.charts import resample, scale_label

__all__ = ["write_page"]

Line = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT, LEFT, BELOW = 340, 150, 58, 22
"""Of a chart, and the room for its axes, pixels."""
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#e69f00",
    "#009e73",
    "#994455",
    "#5566cc",
    "#bbbbbb",
)
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
       color: #1d2430; background: #fff }
h1 { font-size: 1.35rem } h2 { font-size: 1rem; margin: 0 0 .5rem }
main { display: grid; gap: 1.6rem; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)) }
svg { width: 100%; height: auto; overflow: visible } text { font-size: 12px; fill: #5b6472 }
line { stroke: #8886; stroke-width: .6 }
table { border-collapse: collapse } td { padding: .15rem .8rem .15rem 0; text-align: right }
td:first-child { text-align: left }
i { display: inline-block; width: .8em; height: .8em; margin-right: .5em }
@media (prefers-color-scheme: dark) { body { color: #e4e8ee; background: #14181e }
  text { fill: #9aa4b2 } }
"""


def write_page(run: Path, title: str, lines: Sequence[Line]) -> Path:
    """Write the page; its place."""
    steps = [line for line in lines if line.get("time/step")]
    charts = []
    for name, points in metric_series(lines):
        charts.append(f"<section><h2>{name}</h2>{_line(points)}</section>")
    phases = phases_of(steps)
    charts.append(f"<section><h2>share of a step's time</h2>{_stack(steps, phases)}</section>")
    charts.append(f"<section>{_times(steps, phases)}</section>")
    charts.append(f"<section>{_table(list(shares_of(steps).items()))}</section>")
    title = html.escape(f"{title} · {len(steps)} steps")
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    body = f"<h1>{title}</h1><main>{''.join(charts)}</main>"
    place = run / "report.html"
    place.write_text(f"{head}<style>{STYLE}</style>{body}</html>\n", encoding="utf-8")
    return place


def _line(points: Points) -> str:
    """A curve over steps, at most one point a pixel."""
    xs, ys = (resample(values, WIDTH - LEFT) for values in zip(*points, strict=True))
    low, span = min(ys), max(ys) - min(ys)
    shares = [(y - low) / span if span else 0.5 for y in ys]
    places = " ".join(f"{_x(x, xs):.1f},{_y(y):.1f}" for x, y in zip(xs, shares, strict=True))
    curve = f'<polyline points="{places}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.6"/>'
    marked = (0, 0.5, 1) if span else (0.5,)
    scale = [(share, scale_label(low + share * span, span)) for share in marked]
    return _svg(curve, points[0][0], points[-1][0], scale)


def _stack(steps: Sequence[Line], phases: Sequence[tuple[str, list[float]]]) -> str:
    """Shares of each step's time, one area a phase, largest below."""
    width = WIDTH - LEFT
    totals = resample([line["time/step"] for line in steps], width)
    xs = resample([line["step"] for line in steps], width)
    if len(xs) == 1:
        xs, totals = [xs[0], xs[0] + 1], totals * 2
    base, areas = [0.0] * len(xs), []
    for colour, (name, seconds) in zip(COLOURS, phases, strict=False):
        parts = resample(seconds, width)
        parts = parts * 2 if len(parts) < len(xs) else parts
        top = [b + s / t for b, s, t in zip(base, parts, totals, strict=True)]
        there = [f"{_x(x, xs):.1f},{_y(y):.1f}" for x, y in zip(xs, top, strict=True)]
        back = [f"{_x(x, xs):.1f},{_y(y):.1f}" for x, y in zip(xs, base, strict=True)]
        shape = " ".join(there + back[::-1])
        areas.append(f'<polygon points="{shape}" fill="{colour}"><title>{name}</title></polygon>')
        base = top
    scale = [(share, f"{share:.0%}") for share in (0, 0.5, 1)]
    return _svg("".join(areas), steps[0]["step"], steps[-1]["step"], scale)


def _svg(inside: str, first: float, last: float, scale: Sequence[tuple[float, str]]) -> str:
    """A chart with its axes: a line with a label at each share of the height, steps below."""
    rules = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{_y(share):.1f}" y2="{_y(share):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{_y(share) + 4:.1f}" text-anchor="end">{label}</text>'
        for share, label in scale
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{rules}{inside}'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">step {first:,.0f}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{last:,.0f}</text></svg>'
    )


def _x(x: float, xs: Sequence[float]) -> float:
    return LEFT + (x - xs[0]) / ((xs[-1] - xs[0]) or 1) * (WIDTH - LEFT)


def _y(share: float) -> float:
    return 4 + (1 - share) * (HEIGHT - BELOW - 4)


def _times(steps: Sequence[Line], phases: Sequence[tuple[str, list[float]]]) -> str:
    """As on screen; a phase has the colour of its area."""
    colours = {name: colour for colour, (name, _) in zip(COLOURS, phases, strict=False)}
    rows = [["phase", *TIMES]]
    for name, _, texts in times_of(steps):
        mark = f'<i style="background:{colours[name]}"></i>' if name in colours else ""
        rows.append([mark + name, *texts])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
    return f"<table>{lines}</table>"
