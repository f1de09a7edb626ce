"""The stability frontier: the largest learning rate at which an objective does not collapse.

The embedded policy learns `scratchpad` in 60 steps of 256 responses, with an evaluation every five.
Ratios are to the sampler (`training.old_logprobs: sampler`), so that an objective sees how stale
its tokens are; but in one arm they are to the policy at the start of the step. Between the other
arms, only the objective differs; it is the preset's, and its recipe is not.

A run has collapsed if the mean of its last two evaluations is below its first one, or a gradient
was not finite. It is stopped where an evaluation is below 0.1, and counts as collapsed.

For each arm, cell and seed, a bisection over a grid of factor 2^(1/4) finds the largest rate that
does not collapse, as if all smaller rates did not and all larger ones did. Then come runs at half
of this rate, and at half of that of `dapo-loss` with the same seed, which end at 0.80.

    python -m benchmarks.frontier [--seeds N] [--processes P]    goes on where it stopped

Every run is a line of benchmarks/results/frontier.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.harness import commit, note

RESULTS = Path(__file__).parent / "results" / "frontier.jsonl"
STEPS, EVERY, HOPELESS, GOAL = 60, 5, 0.1, 0.8
STEP = 4
"""Rates of the grid in a factor of two."""
BASE = "dapo-loss"
SPURIOUS = "(advantage > 0) & (prob < 0.002) & entropy.bottom(0.8)"
"""The rule of `stapo`."""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: (BASE, {}),
    "unclipped": (BASE, {"surrogate": {"kind": "unclipped", "max_log_ratio": None}}),
    **{name: (name, {}) for name in ("cispo", "gspo", "dppo", "m2po", "kpop", "stapo")},
    "random": ("stapo", {"drop": f"(advantage > 0).sample(({SPURIOUS}).count())"}),
    "recomputed": (BASE, {}),
}
"""The preset of each arm, and what its objective has in place of the preset's. `recomputed` has
ratios to the policy at the start of the step, which at lag 0 are those to the sampler."""


@dataclass(frozen=True)
class Cell:
    """How stale the tokens are.

    Attributes:
        depth: `sampling.async_depth`, the steps between the weights that draw and those that train.
        updates: of a step.
        lowest, highest: the first rate of the grid, and what its last rate does not exceed.
    """

    depth: int
    updates: int
    lowest: float
    highest: float

    @property
    def rates(self) -> list[float]:
        """The grid."""
        count = 1 + math.floor(STEP * math.log2(self.highest / self.lowest))
        return [self.lowest * 2 ** (place / STEP) for place in range(count)]


CELLS = {
    "lag 0, 4 updates": Cell(0, 4, 1e-4, 2.4e-3),
    "lag 4, 4 updates": Cell(4, 4, 2e-5, 1.2e-3),
    "lag 8, 1 update": Cell(8, 1, 2e-5, 1.2e-3),
}
Key = tuple[str, str, int, int]
"""Arm, cell, seed, and place in the grid; half of a rate may lie before its beginning."""
Runs = dict[Key, Mapping[str, Any]]


class _Decided(Exception):
    """An evaluation was below 0.1, or reached what is asked."""


def train(key: Key, until: float = math.inf) -> dict[str, Any]:
    """Train one run, which ends at an accuracy of `until`, and return its line."""
    import rlobj

    name, cell_name, seed, place = key
    cell = CELLS[cell_name]
    rate = cell.lowest * 2 ** (place / STEP)
    preset, changes = ARMS[name]
    line: dict[str, Any] = {"arm": name, "cell": cell_name, "seed": seed, "place": place}
    line |= {"rate": rate, "accuracies": [], "tokens": [], "finite": True, "stopped": False}

    class Watch(rlobj.Callback):
        generated = 0.0

        def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
            self.generated += metrics["tokens/sampled"]
            line["finite"] &= math.isfinite(metrics["train/grad_norm"])

        def evaluated(self, step: int, benchmark: Any) -> None:
            line["accuracies"].append(round(benchmark.accuracy, 4))
            line["tokens"].append(self.generated)
            line["stopped"] = benchmark.accuracy < HOPELESS
            if line["stopped"] or benchmark.accuracy >= until:
                raise _Decided

    settings = {
        "seed": seed,
        "sampling.async_depth": cell.depth,
        "training.steps": STEPS,
        "training.updates_per_step": cell.updates,
        "training.learning_rate": rate,
        "training.old_logprobs": "policy" if name == "recomputed" else "sampler",
        "training.threads": 1,
        "evaluation.every": EVERY,
        "evaluation.samples": 2,
        "checkpoint.every": 0,
        "output.samples_every": 0,
        "output.tables_every": 0,
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(_Decided):
        result = rlobj.train(
            rlobj.load_preset(preset).objective.but(**changes),
            data="scratchpad",
            out=Path(folder) / "run",
            settings=settings,
            progress=False,
            callbacks=[Watch()],
        )
        if result.steps < STEPS:
            raise KeyboardInterrupt
    return {**line, "collapsed": collapsed(line), "commit": commit()}


def differs(arm: str, cell: str) -> bool:
    """Whether an arm is another one than the base in a cell, or the base."""
    return arm != "recomputed" or CELLS[cell].depth > 0


def collapsed(line: Mapping[str, Any]) -> bool:
    """Whether a run has collapsed."""
    if line["stopped"] or not line["finite"]:
        return True
    first, *rest = line["accuracies"]
    return statistics.fmean(rest[-2:]) < first


def read() -> Runs:
    """All runs that ended. A line that a kill cut short is no run."""
    runs: Runs = {}
    for text in RESULTS.read_text().splitlines() if RESULTS.exists() else ():
        if text.endswith("}"):
            line = json.loads(text)
            runs[line["arm"], line["cell"], line["seed"], line["place"]] = line
    return runs


def search(arm: str, cell: str, seed: int, run: Callable[[Key], Mapping[str, Any]]) -> int:
    """The place of the largest rate that does not collapse; -1 if every one does."""
    good, bad = -1, len(CELLS[cell].rates)
    while bad - good > 1:
        place = (good + bad) // 2
        if run((arm, cell, seed, place))["collapsed"]:
            bad = place
        else:
            good = place
    return good


def recorded(runs: Runs, until: float = math.inf) -> Callable[[Key], Mapping[str, Any]]:
    """Trains a run unless it has ended, and writes its line."""

    def run(key: Key) -> Mapping[str, Any]:
        if key not in runs:
            runs[key] = train(key, until)
            with RESULTS.open("a", encoding="utf-8") as file:  # one write: lines do not mix
                file.write(json.dumps(runs[key]) + "\n")
        return runs[key]

    return run


def frontier(runs: Runs, arm: str, cell: str, seed: int) -> int | None:
    """The place that the search found, None if one of its runs is missing."""
    try:
        return search(arm, cell, seed, runs.__getitem__)
    except KeyError:
        return None


def halves(runs: Runs, arm: str, cell: str, seed: int) -> list[int]:
    """Half of the arm's frontier, and half of that of the base."""
    places = [frontier(runs, name, cell, seed) for name in (arm, BASE)]
    return [place - STEP for place in places if place is not None]


def _search(arm: str, cell: str, seed: int) -> None:
    search(arm, cell, seed, recorded(read()))


def _halve(arm: str, cell: str, seed: int) -> None:
    run = recorded(runs := read(), GOAL)
    for place in halves(runs, arm, cell, seed):
        run((arm, cell, seed, place))


def _end_with_the_parent() -> None:
    """End this process with the one that started it, also if that one is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def make(seeds: int, processes: int) -> None:
    """Make all runs that did not end: the searches with lag, those without it, the runs at half.

    The test of the study needs the first ones only, of all seeds.
    """
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _end_with_the_parent) as pool:
        lagged = [cell for cell in CELLS if CELLS[cell].depth]
        fresh = [cell for cell in CELLS if cell not in lagged]
        stages = (_search, lagged), (_search, fresh), (_halve, [*CELLS])
        for (work, cells), seed in product(stages, range(seeds)):
            pairs = [(arm, cell) for cell, arm in product(cells, ARMS) if differs(arm, cell)]
            futures = {pool.submit(work, arm, cell, seed): (arm, cell) for arm, cell in pairs}
            for future in as_completed(futures):
                future.result()
                arm, cell = futures[future]
                place = frontier(read(), arm, cell, seed)
                note(f"seed {seed}, {cell}, {arm}: {work.__name__[1:]} at {place}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=8, help="0, 1, ...")
    parser.add_argument("--processes", type=int, default=2, help="runs at one time")
    options = parser.parse_args()
    make(options.seeds, options.processes)


if __name__ == "__main__":
    main()
