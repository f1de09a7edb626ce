"""The report of `frontier`: frontiers by arm and cell, the tests of the plan, and a picture.

Only seeds with all searches of a cell count there, so that pairs are complete. Intervals are
bootstrap intervals of 95% over seeds, or over pairs.

    python -m benchmarks.frontier_report [--out DIR]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.frontier import (
    ARMS,
    BASE,
    CELLS,
    EVERY,
    GOAL,
    STEP,
    STEPS,
    Runs,
    differs,
    frontier,
    halves,
    read,
)
from benchmarks.harness import Table, main
from rlobj.insight.run_report.figures import COLORS

PLANNED = 8
"""Seeds."""
COLUMNS = {
    "cell": ("cell", ""),
    "arm": ("arm", ""),
    "seeds": ("seeds", "d"),
    "rate": ("frontier", ".2e"),
    "low": ("from", ".2e"),
    "high": ("to", ".2e"),
    "ends": ("at an end of the grid", "d"),
    "factor": ("times dapo-loss", ".2f"),
    "factor_low": ("from", ".2f"),
    "factor_high": ("to", ".2f"),
    "p": ("p", ".4f"),
    "holm": ("p, Holm", ".4f"),
    "tokens": ("10³ tokens to 0.80, half of its own", ".0f"),
    "tokens_base": ("half of dapo-loss's", ".0f"),
    "reached": ("reached", ".0%"),
}


class Frontiers(Table):
    """Its picture has a panel for each cell: seeds as points, and the mean with its interval."""

    def draw(self, figure: Any) -> None:
        rows = [row for row in self.rows if "rates" in row]
        cells = list(dict.fromkeys(row["cell"] for row in rows))
        figure.set_size_inches(12, 4)
        [axes] = figure.subplots(1, len(cells), sharex=True, squeeze=False)
        for axis, cell in zip(axes, cells, strict=True):
            shown = [row for row in rows if row["cell"] == cell]
            shown.sort(key=lambda row: row["rate"])
            for place, row in enumerate(shown):
                color = COLORS[1 if row["arm"] == BASE else 0]
                axis.plot(row["rates"], [place] * row["seeds"], "o", color=color, alpha=0.25)
                axis.plot([row["low"], row["high"]], [place] * 2, color=color, linewidth=3)
                axis.plot(row["rate"], place, "D", color=color)
            axis.set_yticks(range(len(shown)), [row["arm"] for row in shown])
            axis.set_xscale("log")
            axis.set_xticks([2**n * 1e-4 for n in range(-2, 5)], minor=False)
            axis.xaxis.set_major_formatter(lambda rate, _: f"{rate * 1e4:g}")
            axis.minorticks_off()
            axis.grid(axis="x", alpha=0.4)
            axis.set_title(cell)
            axis.set_xlabel("largest learning rate without collapse, 1e-4")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The bootstrap interval of a mean; of one value or of equal ones, the mean itself."""
    if len(set(values)) < 2:
        return values[0], values[0]
    found = stats.bootstrap((values,), np.mean, rng=0).confidence_interval
    return float(found.low), float(found.high)


def p_value(differences: Sequence[float]) -> float:
    """Of the permutation test that flips the sign of each difference, two-sided."""
    zeros = np.zeros(len(differences))
    test = stats.permutation_test(
        (differences, zeros), lambda a, b: np.mean(a - b), permutation_type="samples", rng=0
    )
    return float(test.pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Holm's correction, in the order of the values."""
    order, largest, corrected = np.argsort(values), 0.0, [0.0] * len(values)
    for rank, place in enumerate(order):
        largest = max(largest, min(values[place] * (len(values) - rank), 1.0))
        corrected[place] = largest
    return corrected


def complete(runs: Runs, cell: str) -> list[int]:
    """The seeds whose searches in a cell have all ended."""
    arms = [arm for arm in ARMS if differs(arm, cell)]
    seeds = range(PLANNED)
    return [s for s in seeds if all(frontier(runs, arm, cell, s) is not None for arm in arms)]


def tokens_to_goal(line: Any) -> tuple[float, bool]:
    """Generated tokens at the first evaluation that reaches 0.80, or all; and whether one does."""
    pairs = zip(line["tokens"], line["accuracies"], strict=True)
    reached = [tokens for tokens, accuracy in pairs if accuracy >= GOAL]
    return (reached[0], True) if reached else (line["tokens"][-1], False)


def row(runs: Runs, arm: str, cell: str, seeds: Sequence[int]) -> dict[str, Any]:
    """One arm in one cell."""
    grid = CELLS[cell]
    places = [float(frontier(runs, arm, cell, seed)) for seed in seeds]  # type: ignore[arg-type]
    rates = [grid.lowest * 2 ** (p / STEP) for p in (np.mean(places), *interval(places))]
    seen = [grid.lowest * 2 ** (place / STEP) for place in places]
    ends = sum(place in (-1, len(grid.rates) - 1) for place in places)
    numbers: dict[str, Any] = {
        "cell": cell,
        "arm": arm,
        "seeds": len(seeds),
        "ends": ends,
        "rates": seen,
    }
    numbers |= dict(zip(("rate", "low", "high"), rates, strict=True))
    for name, which in (("tokens", 0), ("tokens_base", 1)):
        keys = [(arm, cell, seed, halves(runs, arm, cell, seed)[which]) for seed in seeds]
        spent = [tokens_to_goal(runs[key]) for key in keys if key in runs]
        if len(spent) == len(seeds):
            numbers[name] = float(np.mean([tokens for tokens, _ in spent])) / 1000
            if name == "tokens":
                numbers["reached"] = float(np.mean([reached for _, reached in spent]))
    if arm != BASE:
        numbers |= compared(differences(runs, arm, cell, seeds))
    return numbers


def differences(runs: Runs, arm: str, cell: str, seeds: Sequence[int]) -> list[float]:
    """Places of the grid above `dapo-loss`, one for each seed."""
    pairs = [[frontier(runs, name, cell, seed) for name in (arm, BASE)] for seed in seeds]
    return [float(ours - base) for ours, base in pairs]  # type: ignore[operator]


def compared(values: Sequence[float]) -> dict[str, float]:
    """The factor of the rates, its interval, and the uncorrected p."""
    low, high = interval(values)
    factors = [float(2 ** (value / STEP)) for value in (np.mean(values), low, high)]
    names = ("factor", "factor_low", "factor_high")
    return {**dict(zip(names, factors, strict=True)), "p": p_value(values)}


def measure(quick: bool, rounds: int) -> Table:
    """The table of all runs that ended."""
    runs, rows = read(), []
    seeds = {cell: complete(runs, cell) for cell in CELLS}
    for cell in CELLS:
        if seeds[cell]:
            rows += [row(runs, arm, cell, seeds[cell]) for arm in ARMS if differs(arm, cell)]
    lagged = [cell for cell, settings in CELLS.items() if settings.depth]
    if all(seeds[cell] for cell in lagged):
        family = []
        for arm in ARMS:
            pairs = [d for cell in lagged for d in differences(runs, arm, cell, seeds[cell])]
            if arm != BASE:
                family.append({"cell": "both with lag", "arm": arm, **compared(pairs)})
        for line, corrected in zip(family, holm([line["p"] for line in family]), strict=True):
            line["holm"] = corrected
        rows += family
    whole = [line["tokens"][-1] for line in runs.values() if len(line["tokens"]) > STEPS / EVERY]
    facts = {"runs": len(runs), "fewest tokens": min(whole, default=0)}
    facts["most tokens"] = max(whole, default=0)
    return Frontiers("frontier", COLUMNS, rows, facts, bars=("rate",))


if __name__ == "__main__":
    main(measure)
