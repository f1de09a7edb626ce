"""Which runs the study has: stages, each known when the runs before it have ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.stability import regimes
from benchmarks.stability.analysis import Outcome, outcome
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run


@dataclass(frozen=True)
class Asked:
    """What the command was asked for.

    Attributes:
        conditions: trained at the edge or, without a search, in each setting of `rates`.
        core: those of the conditions that are also trained at the stable setting.
        seeds: their number at the edge.
        stable_seeds: their number at the stable setting.
        task: the family of problems.
        steps: of each run, but for the longer runs of the map.
        rates: learning rates to train at without a search; none = search.
        chart: train the map.
    """

    conditions: Sequence[str] = tuple(GROUPS["core"])
    core: Sequence[str] = tuple(GROUPS["core"])
    seeds: int = 20
    stable_seeds: int = 5
    task: str = "scratchpad"
    steps: int = 200
    rates: Sequence[float] = ()
    chart: bool = True


@dataclass(frozen=True)
class Stage:
    """Runs that are trained together.

    Attributes:
        title: what they are for.
        runs: empty if earlier runs decide which ones these are.
        count: their number.
        steps: of all of them together.
    """

    title: str
    runs: Sequence[Run]
    count: int
    steps: int

    @classmethod
    def of(cls, title: str, runs: Sequence[Run]) -> Stage:
        """A stage whose runs are known."""
        return cls(title, runs, len(runs), sum(run.setting.steps for run in runs))


@dataclass(frozen=True)
class Choice:
    """The settings that the rule chose, and what it looked at."""

    edge: Setting | None
    stable: Setting | None
    beyond: Setting | None
    shares: regimes.Shares
    last: dict[Setting, float]


class Study:
    """The runs of a folder, and what they decide.

    Attributes:
        runs: the folder.
        asked: what to train.
    """

    def __init__(self, runs: Path, asked: Asked = Asked()) -> None:
        self.runs, self.asked = runs, asked
        self._known: dict[Run, Outcome] = {}

    def outcome(self, run: Run) -> Outcome | None:
        """How a run ended; None for one that did not end."""
        if run not in self._known and (found := outcome(run.folder(self.runs))):
            self._known[run] = found
        return self._known.get(run)

    def stages(self) -> list[Stage]:
        """All stages in their order; the runs of some are not known before others have ended."""
        asked = self.asked
        if asked.rates:
            named = [Setting(rate, task=asked.task, steps=asked.steps) for rate in asked.rates]
            return [self._compared("given", named, asked.conditions, asked.seeds)]
        axis = regimes.axis(asked.task, asked.steps)
        found = [self._compared("search", axis, [BASE], regimes.SEEDS)]
        between, choice = self.searched()
        more = len(regimes.MORE_SEEDS)
        if between:
            found.append(self._compared("between", between, [BASE], regimes.MORE_SEEDS))
        elif not choice:
            found.append(self._later("between", more))
        edge, stable = (choice.edge, choice.stable) if choice else (None, None)
        wanted = [
            ("edge", edge, asked.conditions, asked.seeds),
            ("stable", stable, asked.core, asked.stable_seeds),
        ]
        for title, setting, conditions, seeds in wanted:
            if setting:
                found.append(self._compared(title, [setting], conditions, seeds))
            elif not choice:
                found.append(self._later(title, len(conditions) * seeds))
        if not asked.chart:
            return found
        if edge and stable:
            chart = regimes.chart(stable, edge)
            found.append(self._compared("map", chart, [BASE], regimes.SEEDS))
        elif not choice:
            others = regimes.chart(axis[0], axis[0])
            steps = len(regimes.SEEDS) * sum(each.steps for each in others)
            found.append(Stage("map", [], len(regimes.SEEDS) * len(others), steps))
        return found

    def choice(self) -> Choice | None:
        """What the rule chose; None while a run of the search is missing."""
        return self.searched()[1]

    def searched(self) -> tuple[list[Setting], Choice | None]:
        """The settings that were tried between those of the axis, and what the rule chose.

        While runs of the last of these settings, or of the axis, are missing, nothing is chosen.
        """
        between: list[Setting] = []
        shares: dict[Setting, list[bool]] = {}
        for setting in regimes.axis(self.asked.task, self.asked.steps):
            shares[setting] = self._degraded(setting)
            if not self._ended(setting, regimes.SEEDS):
                return [], None
        while len(between) < regimes.BISECTIONS and (tried := regimes.middle(shares)):
            between.append(tried)
            shares[tried] = self._degraded(tried)
            if not self._ended(tried, regimes.MORE_SEEDS):
                return between, None
        last = {setting: mean(end.last for end in self._ends(setting)) for setting in shares}
        edge, stable = regimes.edge(shares), regimes.stable(shares, last)
        return between, Choice(edge, stable, regimes.beyond(shares, edge), shares, last)

    def _ended(self, setting: Setting, seeds: Iterable[int]) -> bool:
        return all(self.outcome(Run(setting, BASE, seed)) for seed in seeds)

    def _ends(self, setting: Setting) -> list[Outcome]:
        """The runs of the search that ended in a setting."""
        ends = (self.outcome(Run(setting, BASE, seed)) for seed in regimes.MORE_SEEDS)
        return [end for end in ends if end]

    def _degraded(self, setting: Setting) -> list[bool]:
        return [end.degraded for end in self._ends(setting)]

    def _compared(
        self,
        title: str,
        settings: Sequence[Setting],
        conditions: Sequence[str],
        seeds: int | Sequence[int],
    ) -> Stage:
        """All conditions in all settings, seed by seed, so that pairs are complete early."""
        each = range(seeds) if isinstance(seeds, int) else seeds
        return Stage.of(title, [Run(s, c, n) for n in each for s in settings for c in conditions])

    def _later(self, title: str, count: int) -> Stage:
        return Stage(title, [], count, count * self.asked.steps)
