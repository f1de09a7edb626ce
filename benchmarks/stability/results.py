"""The runs of a study that ended, those that are missing, and the settings that they chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stability import plan, regimes, runs
from benchmarks.stability.analysis import Outcome
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.plan import Asked
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run
from rlobj.base.errors import RunError

CORE = list(GROUPS["core"])
PRIMARY = [*((name, BASE) for name in CORE if name != BASE), ("stapo", "random")]
"""The primary comparisons, as (condition, base)."""

Runs = Mapping[str, Mapping[int, Outcome]]
"""The runs of a setting that ended, by condition and seed."""


@dataclass(frozen=True)
class Results:
    """A study, finished or not.

    Attributes:
        folder: of the study.
        runs: runs that ended, by setting.
        unfinished: runs that began and did not end.
        missing: (setting, condition, seeds) of planned runs that did not end.
        searched: the settings of the search, by learning rate.
        chosen: by the search; None while it goes on.
        chart: the settings of the map.
        planned: number of planned runs.
    """

    folder: Path
    runs: Mapping[Setting, Runs]
    unfinished: Sequence[Run]
    missing: Sequence[tuple[Setting, str, Sequence[int]]]
    searched: Sequence[Setting]
    chosen: plan.Choice | None
    chart: Sequence[Setting]
    planned: int

    @property
    def edge(self) -> Setting | None:
        """The setting of the primary comparison."""
        return self.chosen.edge if self.chosen else None

    @property
    def stable(self) -> Setting | None:
        """The setting where no run of the search degraded."""
        return self.chosen.stable if self.chosen else None

    def of(self, setting: Setting | None, search: bool = False) -> Runs:
        """The runs of a setting: those of the comparison, or those of the search and the map."""
        every = self.runs.get(setting, {}) if setting else {}
        kept = {
            name: {seed: x for seed, x in each.items() if (seed in regimes.MORE_SEEDS) == search}
            for name, each in every.items()
        }
        return {name: each for name, each in kept.items() if each}

    def base(self, setting: Setting) -> list[Outcome]:
        """The runs of dapo-loss of the search or of the map in a setting."""
        return list(self.of(setting, search=True).get(BASE, {}).values())


def read(folder: Path, asked: Asked | None = None) -> Results:
    """Read the runs of a study.

    Args:
        folder: of the study.
        asked: what the study was asked for, which says what is missing; None = the defaults.

    Raises:
        RunError: there is no such folder, or it has runs of another version.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is no folder: expected --runs DIR, the folder of a study")
    study = plan.Study(folder, asked or Asked())
    stages = {stage.title: stage for stage in study.stages()}
    planned = [run for stage in stages.values() for run in stage.runs]
    ended: dict[Setting, dict[str, dict[int, Outcome]]] = {}
    missing: dict[tuple[Setting, str], list[int]] = {}
    unfinished = []
    for run in dict.fromkeys([*planned, *runs.found(folder)]):
        if found := study.outcome(run):
            ended.setdefault(run.setting, {}).setdefault(run.condition, {})[run.seed] = found
        elif run.folder(folder).exists():
            unfinished.append(run)
    for run in planned:
        if run.seed not in ended.get(run.setting, {}).get(run.condition, {}):
            missing.setdefault((run.setting, run.condition), []).append(run.seed)

    def settings(*titles: str) -> list[Setting]:
        each = (run.setting for title in titles if title in stages for run in stages[title].runs)
        return list(dict.fromkeys(each))

    return Results(
        folder,
        {setting: _in_order(each) for setting, each in ended.items()},
        unfinished,
        [(*where, seeds) for where, seeds in missing.items()],
        sorted(settings("search", "between"), key=lambda each: each.learning_rate),
        None if study.asked.rates else study.choice(),
        settings("map"),
        sum(stage.count for stage in stages.values()),
    )


def _in_order(conditions: Mapping[str, Mapping[int, Outcome]]) -> Runs:
    """Conditions in the order of the study, seeds in that of numbers."""
    order = [name for group in GROUPS.values() for name in group]
    names = sorted(conditions, key=order.index)
    return {name: dict(sorted(conditions[name].items())) for name in names}
