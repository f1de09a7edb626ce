"""The pictures of the study: accuracies, differences and shares; entropies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.harness import wilson
from benchmarks.stability.analysis import Comparison, Outcome
from benchmarks.stability.results import Runs

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#666666"
"""Two colours of Okabe and Ito, which people with any kind of colour blindness tell apart."""
COLUMNS, INCHES = 4, 8
TEXT, TITLE = 9, 11
"""Sizes of letters: about 12 and 14 pixels if the picture is 740 pixels wide."""
EVERY = 20
"""Steps between evaluations."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
READING = (
    Line2D([], [], color=BLUE, lw=1, label="blue: a seed that\ndid not degrade"),
    Line2D([], [], color=ORANGE, lw=1, label="orange: a seed\nthat degraded"),
    Line2D([], [], color="black", lw=2, label="black: mean\nof the seeds"),
    Line2D([], [], color=GREY, lw=1, ls=":", label="dotted: before\ntraining"),
)
READING_ENTROPY = (
    Line2D([], [], color=BLUE, lw=2, label="median of the\nseeds"),
    Patch(color=BLUE, alpha=0.4, lw=0, label="80% of the\nseeds"),
    Patch(color=BLUE, alpha=0.15, lw=0, label="all seeds"),
    Line2D([], [], color=GREY, lw=1, ls=":", label="first 10 steps,\nand a tenth of it"),
)


def draw(runs: Runs, comparisons: Sequence[Comparison], title: str, file: Path) -> None:
    """Write the picture of accuracies, paired differences and shares of a setting."""
    figure = _figure(_rows(runs) * 1.9 + 3.6, title)
    parts: Any = figure.subfigures(2, 1, height_ratios=[_rows(runs) * 1.9, 3.1])
    top, bottom = parts
    panels = _panels(top, runs, READING)
    for axis, (name, each) in zip(panels, runs.items(), strict=True):
        _accuracies(axis, name, list(each.values()))
    left, right = bottom.subplots(1, 2, gridspec_kw={"width_ratios": [1.25, 1]})
    _differences(left, comparisons)
    _shares(right, runs)
    _save(figure, file)


def draw_entropies(runs: Runs, title: str, file: Path) -> None:
    """Write the picture of entropies of a setting."""
    figure = _figure(_rows(runs) * 1.9 + 0.5, title)
    panels = _panels(figure, runs, READING_ENTROPY)
    for axis, (name, each) in zip(panels, runs.items(), strict=True):
        _entropies(axis, name, list(each.values()))
    panels[0].set_yscale("log")  # of all panels, which share their axes
    panels[0].set_yticks(TICKS, map(str, TICKS))
    panels[0].minorticks_off()
    _save(figure, file)


def _rows(runs: Runs) -> int:
    return -(-len(runs) // COLUMNS)


def _figure(height: float, title: str) -> Figure:
    figure = Figure((INCHES, height), layout="constrained", facecolor="white")
    figure.suptitle(title, fontsize=TITLE, x=0.01, ha="left")
    return figure


def _save(figure: Figure, file: Path) -> None:
    from PIL import Image

    figure.savefig(file, dpi=200)
    Image.open(file).convert("RGB").quantize(256).save(file, optimize=True)


def _panels(figure: Any, runs: Runs, reading: Sequence[Any]) -> list[Any]:
    """A panel for each condition, with common axes, and a legend in the place of a panel that is
    left or below them."""
    columns = min(COLUMNS, len(runs))
    grid = figure.subplots(_rows(runs), columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for place, axis in enumerate(panels[: len(runs)]):
        lowest = place + columns >= len(runs)
        axis.tick_params(labelsize=TEXT, labelbottom=lowest)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("step" if lowest else "", fontsize=TEXT)
    for axis in panels[len(runs) :]:
        axis.axis("off")
    if len(panels) > len(runs):
        where = {"loc": "lower left", "bbox_to_anchor": (-0.1, -0.12), "borderpad": 0}
        panels[len(runs)].legend(handles=reading, fontsize=TEXT, frameon=False, **where)
    else:
        where = {"loc": "outside lower center", "ncols": len(reading)}
        figure.legend(handles=reading, fontsize=TEXT, frameon=False, **where)
    return panels[: len(runs)]


def _accuracies(axis: Any, name: str, runs: Sequence[Outcome]) -> None:
    """One line for each seed, orange if it degraded, and their mean."""
    curves = [run.accuracies for run in runs if len(run.accuracies) > 1]
    longest = max((len(curve) for curve in curves), default=1)
    for run in runs:
        places = np.arange(len(run.accuracies)) * EVERY
        axis.plot(
            places, run.accuracies, color=ORANGE if run.degraded else BLUE, lw=0.6, alpha=0.55
        )
    whole = [curve for curve in curves if len(curve) == longest]
    if whole:
        axis.plot(np.arange(longest) * EVERY, np.mean(whole, axis=0), color="black", lw=2)
        axis.axhline(mean(curve[0] for curve in whole), color=GREY, lw=0.8, ls=":")
    degraded = sum(run.degraded for run in runs)
    axis.set_title(f"{name}: {degraded} of {len(runs)} degraded", fontsize=TEXT)
    axis.set_ylim(0, 1)
    axis.set_ylabel(
        "held-out accuracy" if axis.get_subplotspec().is_first_col() else "", fontsize=TEXT
    )


def _entropies(axis: Any, name: str, runs: Sequence[Outcome]) -> None:
    """The median of the seeds, the band of 80% of them and that of all of them."""
    curves = [run.entropies for run in runs if run.entropies]
    longest = max((len(curve) for curve in curves), default=0)
    values = np.array(
        [[np.nan if x is None else x for x in curve] for curve in curves if len(curve) == longest]
    )
    axis.set_title(name, fontsize=TEXT)
    if longest:
        places = np.arange(longest) * 10 + 5
        low, few, middle, many, high = np.nanquantile(values, [0, 0.1, 0.5, 0.9, 1], axis=0)
        axis.fill_between(places, low, high, color=BLUE, alpha=0.15, lw=0)
        axis.fill_between(places, few, many, color=BLUE, alpha=0.3, lw=0)
        axis.plot(places, middle, color=BLUE, lw=2)
        for part in (1, 10):
            axis.axhline(np.nanmedian(values[:, 0]) / part, color=GREY, lw=0.8, ls=":")
    if axis.get_subplotspec().is_first_col():
        axis.set_ylabel("entropy, nats", fontsize=TEXT)


def _differences(axis: Any, comparisons: Sequence[Comparison]) -> None:
    """A paired difference of last accuracies for each comparison, with both intervals."""
    for place, each in enumerate(comparisons):
        for interval, width, alpha in ((each.wide, 1.5, 0.5), (each.interval, 3.5, 1.0)):
            if interval:
                axis.plot(interval, (place, place), color=BLUE, lw=width, alpha=alpha)
        axis.plot([each.difference], [place], "o", color="black", ms=4, zorder=3)
    axis.axvline(0, color=GREY, lw=0.8, ls=":")
    low, high = axis.get_xlim()
    axis.set_xlim(
        max(low, -1), min(high, 1)
    )  # intervals of few pairs are wider than any difference
    names = [f"{each.name} − {each.base}" for each in comparisons]
    axis.set_yticks(range(len(names)), names, fontsize=TEXT)
    axis.invert_yaxis()
    axis.tick_params(axis="x", labelsize=TEXT)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("paired difference in last accuracy", fontsize=TEXT, loc="right")
    reading = "thick: 95% interval\nthin: 99.3%, for seven comparisons at once"
    axis.set_xlabel(reading, fontsize=TEXT)


def _shares(axis: Any, runs: Runs) -> None:
    """The shares of degraded and of collapsed runs, with Wilson intervals."""
    kinds = (("degraded", -0.17, ORANGE, "o"), ("collapsed", 0.17, "black", "s"))
    for key, shift, color, mark in kinds:
        for place, each in enumerate(runs.values()):
            hits = sum(getattr(run, key) for run in each.values())
            low, high = wilson(hits, len(each))
            axis.plot((low, high), (place + shift,) * 2, color=color, lw=1.5, alpha=0.6)
            label = key if not place else None
            axis.plot([hits / len(each)], [place + shift], mark, color=color, ms=4, label=label)
    axis.set_yticks(range(len(runs)), list(runs), fontsize=TEXT)
    axis.invert_yaxis()
    axis.set_xlim(-0.02, 1.02)
    axis.tick_params(axis="x", labelsize=TEXT)
    axis.spines[["top", "right"]].set_visible(False)
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.08), "ncols": 2}
    axis.legend(fontsize=TEXT, frameon=False, **where)
    axis.set_title("share of runs, 95% interval", fontsize=TEXT, loc="right")
