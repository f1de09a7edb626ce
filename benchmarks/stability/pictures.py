"""The pictures of the study: every run, what decides, and the entropy beside its targets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.stability.conditions import BASE, TARGETS
from benchmarks.stability.outcomes import EVERY, NEAR, Outcome
from benchmarks.stability.plan import (
    BEYOND,
    COLLAPSE,
    CONTROLS,
    GOAL,
    RATES,
    STRAINED,
    STUDIED,
    Arm,
    gates,
    strained,
)
from benchmarks.stability.results import Knob, Results

COLOURS = {
    "static": "#0072B2",
    "dynamic": "#D55E00",
    "more prompts": "#009E73",
    "more steps": "#CC79A7",
    "no refill": "#666666",
}
"""Colours of Okabe and Ito, which people with any kind of colour blindness tell apart."""
TEXT, TITLE, INCHES = 9, 10, 8.0


def draw_runs(found: Results, file: Path) -> None:
    """Every run: accuracy by generated tokens, and the last accuracies beyond the edge."""
    figure = Figure(figsize=(INCHES, 6.6), layout="constrained")
    axes = figure.subplots(2, 3).ravel()
    for axis, name in zip(axes, STUDIED, strict=False):
        for how in RATES:
            _curves(axis, found.of("regime", Arm.of(name, how)), COLOURS[how])
        _tokens(axis, name)
    for how in (*RATES, *CONTROLS):
        part = "regime" if how in RATES else "controls"
        _curves(axes[4], found.of(part, Arm.of(BASE, how)), COLOURS[how], faint=0.25)
    _tokens(axes[4], f"{BASE}: controls")
    _beyond(axes[5], found)
    lines = [Line2D([], [], color=colour, lw=2, label=how) for how, colour in COLOURS.items()]
    figure.legend(handles=lines, loc="outside upper center", ncols=5, fontsize=TEXT, frameon=False)
    figure.savefig(file, dpi=150)


def _curves(axis: Any, runs: Sequence[Outcome], colour: str, faint: float = 0.4) -> None:
    """A thin line for each run, and the mean over the tokens that all have generated."""
    for run in runs:
        axis.plot(np.array(run.tokens) / 1e6, run.smooth, color=colour, lw=0.7, alpha=faint)
    if runs:
        end = min(run.tokens[-1] for run in runs)
        at = np.linspace(0, end, 60)
        middle = np.mean([np.interp(at, run.tokens, run.smooth) for run in runs], axis=0)
        axis.plot(at / 1e6, middle, color=colour, lw=2)


def _tokens(axis: Any, title: str) -> None:
    axis.axhline(GOAL, color="black", lw=0.8, ls=":")
    axis.set_title(title, fontsize=TITLE)
    axis.set_xlabel("generated tokens, millions", fontsize=TEXT)
    axis.set_ylabel("held-out accuracy", fontsize=TEXT)
    axis.set_ylim(0.5, 1.0)
    axis.tick_params(labelsize=TEXT)


def _beyond(axis: Any, found: Results) -> None:
    """A point for each run with four updates, the accuracy before (dotted), and half of it."""
    parts = (("beyond", BEYOND, "static"), ("collapse", COLLAPSE, "dynamic"))
    for place, name in enumerate(STRAINED):
        for part, rate, colour in parts:
            arm = strained(name, rate)
            ends = [run.last for run in (*found.of(part, arm), *found.of("steeper", arm))]
            axis.plot(ends, [place] * len(ends), "o", ms=5, alpha=0.6, color=COLOURS[colour])
    starts = [run.accuracies[0] for run in found.all if run.part == "beyond"]
    if starts:
        axis.axvline(mean(starts), color="black", lw=0.8, ls=":")
        axis.axvline(mean(starts) / 2, color="black", lw=0.8)
    names = [name.replace(", clip", ",\nclip") for name in STRAINED]
    axis.set_yticks(range(len(names)), names, fontsize=TEXT - 1)
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.set_xlabel(f"last accuracy (blue: {BEYOND:g})", fontsize=TEXT)
    axis.set_title("4 updates per rollout", fontsize=TITLE)
    axis.tick_params(axis="x", labelsize=TEXT)


def draw_decides(knobs: Sequence[Knob], file: Path) -> None:
    """The effect of each knob with its interval: on the accuracy at the end, and on the tokens."""
    figure = Figure(figsize=(INCHES, 1.1 + 0.32 * len(knobs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for place, (_, end, cost) in enumerate(knobs):
        for axis, each, unit in ((left, end, float), (right, cost, lambda value: 2**value)):
            if each is None:
                continue
            low, high = each.interval or (each.difference, each.difference)
            clear = bool(each.interval) and (low > 0 or high < 0)
            colour = COLOURS["dynamic"] if clear else COLOURS["no refill"]
            axis.plot([unit(low), unit(high)], [place, place], color=colour, lw=2)
            axis.plot(unit(each.difference), place, "o", color=colour, ms=6)
    left.axvline(0, color="black", lw=0.8, ls=":")
    right.axvline(1, color="black", lw=0.8, ls=":")
    right.set_xscale("log", base=2)
    right.set_xticks([0.5, 1, 2], ["1/2", "1", "2"])
    left.set_yticks(range(len(knobs)), [name for name, *_ in knobs], fontsize=TEXT)
    left.invert_yaxis()
    left.set_xscale("symlog", linthresh=0.05)
    left.set_xticks([-0.5, -0.05, 0, 0.05], ["−0.5", "−0.05", "0", "0.05"])
    left.set_xlabel("last accuracy: difference", fontsize=TEXT)
    right.set_xlabel("generated tokens until 0.85: factor", fontsize=TEXT)
    for axis in (left, right):
        axis.tick_params(axis="x", labelsize=TEXT)
        axis.grid(axis="y", lw=0.3)
    figure.savefig(file, dpi=150)


def draw_band(found: Results, file: Path) -> None:
    """The entropy of the gates beside dapo-loss with the same seed, a panel for each target."""
    figure = Figure(figsize=(INCHES, 3.0), layout="constrained")
    axes = figure.subplots(1, len(TARGETS), sharey=True)
    for axis, target in zip(axes, TARGETS, strict=True):
        axis.axhspan(target * (1 - NEAR), target * (1 + NEAR), color="#DDDDDD", lw=0)
        named = [("regime", BASE), *gates(target)]
        for (part, name), colour in zip(named, COLOURS.values(), strict=False):
            for run in found.of(part, Arm.of(name, "static")):
                if run.seed == 0:
                    steps = EVERY * (np.arange(len(run.entropies)) + 0.5)
                    axis.plot(steps, run.entropies, color=colour, lw=1.5, label=name)
        axis.legend(fontsize=TEXT - 1, frameon=False)
        axis.set_title(f"target {target:g} nats (grey: ± 20%)", fontsize=TITLE)
        axis.set_xlabel("step", fontsize=TEXT)
        axis.set_yscale("log")
        axis.set_yticks([0.02, 0.05, 0.1, 0.2], ["0.02", "0.05", "0.1", "0.2"])
        axis.minorticks_off()
        axis.tick_params(labelsize=TEXT)
    axes[0].set_ylabel("entropy, nats", fontsize=TEXT)
    figure.savefig(file, dpi=150)
