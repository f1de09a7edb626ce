"""Folders of a stability study whose truth is known, without training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.stability import regimes
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run

BEFORE = 0.55
EDGE, STABLE = Setting(5e-4), Setting(4e-4)


def write_run(
    runs: Path,
    run: Run,
    accuracies: Sequence[float],
    entropies: Sequence[float] = (0.2, 0.05),
    more: Mapping[str, Any] | None = None,
    ended: str = "done",
) -> Path:
    """A run with all its steps; its entropies go from the first to the second one in its middle.

    Args:
        runs: folder of the study.
        run: the run.
        accuracies: held-out accuracies, evenly over the steps, the first one before them.
        entropies: of the first and the second half.
        more: metrics of every step.
        ended: "done", how it failed, or "" for a run in progress.
    """
    folder = run.folder(runs)
    folder.mkdir(parents=True)
    (folder / "config.resolved.yaml").write_text("{}")
    lines: list[dict[str, Any]] = [{"step": 0}]
    lines += [
        {
            "step": step,
            "policy/entropy": entropies[step > run.setting.steps // 2],
            "tokens/step": 1000.0,
            "tokens/unscored": 0.0,
            "reward/accuracy": 0.5,
            **(more or {}),
        }
        for step in range(1, run.setting.steps + 1)
    ]
    for step, accuracy in enumerate(accuracies):
        place = round(step * run.setting.steps / max(len(accuracies) - 1, 1))
        lines[place]["eval/accuracy"] = accuracy
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if ended == "done":
        facts = {"cpu_seconds": 60.0, "wall_seconds": 61.0, "commit": "abc"}
        (folder / "done").write_text(json.dumps(facts))
    elif ended:
        (folder / "failed").write_text(ended)
        (folder / "log").write_text("Traceback\nMemoryError: no room\n")
    return folder


def course(last: float) -> list[float]:
    """Accuracies that go from BEFORE to a last accuracy in a line."""
    return [*np.linspace(BEFORE, last, 9).tolist(), last, last]


def write_search(runs: Path, shares: Mapping[float, Sequence[bool]]) -> None:
    """The search's runs of dapo-loss: for each learning rate, whether each run degrades."""
    for rate, degraded in shares.items():
        for seed, down in zip(regimes.MORE_SEEDS, degraded, strict=False):
            last = 0.3 + seed / 1000 if down else 0.6 + rate * 100
            write_run(runs, Run(Setting(rate), BASE, seed), course(last))


def write_study(runs: Path, effects: Mapping[str, float], seeds: int = 20) -> None:
    """A finished study with the edge at 5e-4.

    Args:
        runs: folder of the study.
        effects: by condition, the true difference of its last accuracy from dapo-loss's.
        seeds: of the edge; fewer than 20 leave the study unfinished.
    """
    stays, half, falls = [False] * 4, [True, True, False, False], [True] * 4
    rates = dict(zip(regimes.RATES, (stays, stays, half, falls, falls, falls), strict=True))
    write_search(runs, rates)
    noise = np.random.default_rng(0)
    for setting, count in ((EDGE, seeds), (STABLE, 5)):
        for seed in range(count):
            own = noise.normal(0, 0.1)
            for name in GROUPS["core"]:
                effect = effects.get(name, 0.0) + noise.normal(0, 0.02)
                dropped = {"tokens/dropped": 1.0} if name in ("stapo", "random") else {}
                write_run(runs, Run(setting, name, seed), course(0.5 + own + effect), more=dropped)
    for setting in regimes.chart(STABLE, EDGE):
        for seed in regimes.SEEDS:
            write_run(runs, Run(setting, BASE, seed), course(0.7))
