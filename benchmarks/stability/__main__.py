"""The command of the study.

python -m benchmarks.stability --runs DIR [--out benchmarks/results] [--jobs K]

A run that is finished in DIR is not repeated, so an interrupted study goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import mean

from benchmarks.harness import note
from benchmarks.stability import regimes
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run, make
from rlobj.config.run_folder import read_metrics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at one time")
    parser.add_argument("--edge-seeds", type=int, default=20, help="seeds at the edge")
    parser.add_argument("--stable-seeds", type=int, default=5, help="seeds at the stable setting")
    options = parser.parse_args()
    began = time.monotonic()

    def tell(run: Run, state: str) -> None:
        values = accuracies(options.runs, run) if state == "done" else []
        note(
            f"{time.monotonic() - began:6.0f} s {run.setting} {run.condition} {run.seed} {state} "
            f"{[round(v, 3) for v in values]}"
        )

    def trained(settings: list[Setting], conditions: list[str], seeds: range) -> None:
        study = [Run(s, c, seed) for seed in seeds for s in settings for c in conditions]
        make(options.runs, study, options.jobs, tell)

    def found(settings: list[Setting]) -> dict[Setting, list[list[float]]]:
        every = [*regimes.SEEDS, *regimes.MORE_SEEDS]
        each = {s: [Run(s, BASE, seed) for seed in every] for s in settings}
        return {
            s: [
                accuracies(options.runs, r)
                for r in rs
                if (r.folder(options.runs) / "done").exists()
            ]
            for s, rs in each.items()
        }

    trained(regimes.AXIS, [BASE], regimes.SEEDS)
    shares = {s: [regimes.degraded(v) for v in vs] for s, vs in found(regimes.AXIS).items()}
    trained(regimes.undecided(shares), [BASE], regimes.MORE_SEEDS)
    values = found(regimes.AXIS)
    shares = {s: [regimes.degraded(v) for v in vs] for s, vs in values.items()}
    last = {s: mean(mean(v[-regimes.LAST :]) for v in vs) for s, vs in values.items()}
    edge = regimes.edge(shares)
    stable = regimes.stable(shares, last)
    note(f"edge {edge}, stable {stable}, beyond {regimes.beyond(shares, edge)}")
    for s in regimes.AXIS:
        note(f"{s}: {shares[s]} {last[s]:.3f}")
    core = list(GROUPS["core"])
    if edge is not None:
        trained([edge], core, range(options.edge_seeds))
    if stable is not None:
        trained([stable], core, range(options.stable_seeds))
    if edge is not None and stable is not None:
        trained(regimes.chart(stable, edge), [BASE], regimes.SEEDS)


def accuracies(runs: Path, run: Run) -> list[float]:
    """The held-out accuracies of a run, the first one before training."""
    lines = read_metrics(run.folder(runs))
    return [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]


if __name__ == "__main__":
    main()
