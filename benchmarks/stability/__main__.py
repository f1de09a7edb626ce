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

    def found() -> dict[Setting, list[list[float]]]:
        each = {s: [Run(s, BASE, seed) for seed in regimes.MORE_SEEDS] for s in searched}
        return {
            s: [accuracies(options.runs, r) for r in rs if done(options.runs, r)]
            for s, rs in each.items()
        }

    searched = list(regimes.AXIS)
    trained(searched, [BASE], regimes.SEEDS)
    for _ in range(regimes.BISECTIONS + 1):
        values = found()
        shares = {s: [regimes.degraded(v) for v in vs] for s, vs in values.items()}
        tried = regimes.middle(shares)
        if tried is None or len(searched) == len(regimes.AXIS) + regimes.BISECTIONS:
            break
        searched.append(tried)
        trained([tried], [BASE], regimes.MORE_SEEDS)
    last = {s: mean(mean(v[-regimes.LAST :]) for v in vs) for s, vs in values.items()}
    edge = regimes.edge(shares)
    stable = regimes.stable(shares, last)
    note(f"edge {edge}, stable {stable}, beyond {regimes.beyond(shares, edge)}")
    for s in searched:
        note(f"{s}: {shares[s]} {last[s]:.3f}")
    core = list(GROUPS["core"])
    if edge is not None:
        trained([edge], core, range(options.edge_seeds))
    if stable is not None:
        trained([stable], core, range(options.stable_seeds))
    if edge is not None and stable is not None:
        trained(regimes.chart(stable, edge), [BASE], regimes.SEEDS)


def done(runs: Path, run: Run) -> bool:
    """Whether the run is finished."""
    return (run.folder(runs) / "done").exists()


def accuracies(runs: Path, run: Run) -> list[float]:
    """The held-out accuracies of a run, the first one before training."""
    lines = read_metrics(run.folder(runs))
    return [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]


if __name__ == "__main__":
    main()
