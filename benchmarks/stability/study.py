"""What is in the folder of a study: the runs that ended, those that are missing, the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.stability import regimes
from benchmarks.stability.analysis import Outcome, outcome
from benchmarks.stability.conditions import BASE, CONDITIONS, GROUPS
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run
from rlobj.base.errors import RunError

EDGE_SEEDS, STABLE_SEEDS = range(20), range(5)
CORE = list(GROUPS["core"])
PRIMARY = [*((name, BASE) for name in CORE if name not in (BASE, "random")), ("random", BASE)]
PRIMARY.append(("stapo", "random"))
"""The primary comparisons, as (condition, base)."""

Runs = Mapping[str, Mapping[int, Outcome]]
"""The runs of a setting that ended, by condition and seed."""


@dataclass(frozen=True)
class Study:
    """A study, finished or not.

    Attributes:
        runs: runs that ended, by name of the setting.
        unfinished: (setting, condition, seed) of runs that began and did not end.
        missing: (setting, condition, seeds) of planned runs that did not end.
        searched: the settings of the search, by learning rate.
        searched_all: whether the search is finished.
        edge, stable, beyond: the chosen ones; None without one, or while the search goes on.
        chart: the settings of the map.
        planned: number of planned runs, as far as the search has come.
    """

    runs: Mapping[str, Runs]
    unfinished: Sequence[tuple[str, str, int]]
    missing: Sequence[tuple[str, str, Sequence[int]]]
    searched: Sequence[Setting]
    searched_all: bool
    edge: Setting | None
    stable: Setting | None
    beyond: Setting | None
    chart: Sequence[Setting]
    planned: int

    def of(self, setting: Setting | str | None, search: bool = False) -> Runs:
        """The runs of a setting: those of the comparison, or those of the search."""
        every = self.runs.get(str(setting), {})
        return {
            condition: {
                seed: run for seed, run in each.items() if (seed in regimes.MORE_SEEDS) == search
            }
            for condition, each in every.items()
        }

    def base(self, setting: Setting) -> list[Outcome]:
        """The runs of dapo-loss of the search or of the map in a setting."""
        return [*self.of(setting, search=True).get(BASE, {}).values()]

    @property
    def others(self) -> list[str]:
        """Settings that are neither in the search nor in the map, such as other task families."""
        known = {str(each) for each in (*self.searched, *self.chart)}
        return [name for name in self.runs if name not in known]

    @property
    def finished(self) -> bool:
        """Whether every planned run ended and the search was completed."""
        return not self.missing


def read(folder: Path) -> Study:
    """Read the runs of a study.

    Raises:
        RunError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder: expected --runs DIR, the folder of a study")
    runs, unfinished = _runs(folder)
    searched, seeds = _searched(runs)
    planned = [(each, BASE, seeds[each]) for each in searched]
    degraded = {s: [run.degraded for run in _base(runs, s, seeds[s])] for s in searched}
    edge = stable = beyond = None
    chart: list[Setting] = []
    searched_all = all(len(degraded[s]) == len(seeds[s]) for s in searched)
    if searched_all:
        last = {s: mean(run.last for run in _base(runs, s, seeds[s])) for s in searched}
        edge = regimes.edge(degraded)
        stable, beyond = regimes.stable(degraded, last), regimes.beyond(degraded, edge)
        for setting, wanted in ((edge, EDGE_SEEDS), (stable, STABLE_SEEDS)):
            planned += [(setting, name, wanted) for name in CORE if setting is not None]
        if edge is not None and stable is not None:
            chart = regimes.chart(stable, edge)
            planned += [(each, BASE, regimes.SEEDS) for each in chart]
    missing = [
        (str(setting), name, left)
        for setting, name, wanted in planned
        if (left := [x for x in wanted if x not in runs.get(str(setting), {}).get(name, {})])
    ]
    return Study(
        runs,
        unfinished,
        missing,
        sorted(searched, key=lambda each: each.learning_rate),
        searched_all,
        edge,
        stable,
        beyond,
        chart,
        sum(len(wanted) for _, _, wanted in planned),
    )


def _runs(folder: Path) -> tuple[dict[str, dict[str, dict[int, Outcome]]], list]:
    """The runs that ended, and those that did not."""
    names = {folder_name(name): name for name in CONDITIONS}
    runs: dict[str, dict[str, dict[int, Outcome]]] = {}
    unfinished = []
    for each in sorted(folder.glob("*/*/*"), key=lambda path: (path.parent, len(path.name), path)):
        if not each.is_dir() or not each.name.isdigit():
            continue
        setting, condition = each.parts[-3], names.get(each.parts[-2], each.parts[-2])
        found = outcome(each)
        if found is None:
            unfinished.append((setting, condition, int(each.name)))
        else:
            runs.setdefault(setting, {}).setdefault(condition, {})[found.seed] = found
    return runs, unfinished


def folder_name(condition: str) -> str:
    """The name of the folder with the runs of a condition."""
    return Run(regimes.AXIS[0], condition, 0).folder(Path()).parent.name


def _base(runs: Mapping[str, Runs], setting: Setting, seeds: Iterable[int]) -> list[Outcome]:
    found = runs.get(str(setting), {}).get(BASE, {})
    return [found[seed] for seed in seeds if seed in found]


def _searched(runs: Mapping[str, Runs]) -> tuple[list[Setting], dict[Setting, Sequence[int]]]:
    """The settings that the rule has tried so far, or tries next, and the seeds of each."""
    searched = list(regimes.AXIS)
    seeds: dict[Setting, Sequence[int]] = dict.fromkeys(searched, regimes.SEEDS)
    for _ in range(regimes.BISECTIONS):
        degraded = {s: [run.degraded for run in _base(runs, s, seeds[s])] for s in searched}
        if any(len(degraded[s]) < len(seeds[s]) for s in searched):
            break
        tried = regimes.middle(degraded)
        if tried is None:
            break
        searched.append(tried)
        seeds[tried] = regimes.MORE_SEEDS
    return searched, seeds
