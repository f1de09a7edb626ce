"""The metrics of a run so far, as the checks of a diagnosis read them.

They are means over few steps, early and now.
"""

import fnmatch
import itertools
import math
from collections import Counter, deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from rlobj.base.errors import RlobjError
from rlobj.base.targets import without_imports
from rlobj.settings.building import build_config
from rlobj.settings.layers import layers_of
from rlobj.settings.run_config import RunConfig

Line = dict[str, float]

WINDOW = 5
"""Steps in a mean. One step of 32 prompts has an accuracy with a standard error up to 0.09; the
mean of five steps has 0.04."""
LAST = 2 * WINDOW
"""Steps that are kept beside the first ones, so that a long run needs no more memory."""
MOST = 1e300
"""Larger numbers, which no metric has, count as absent."""


class History:
    """The metrics of the first and the last steps of a run.

    Args:
        config: the run's.
        foreign: another trainer made the run.

    Attributes:
        steps: the steps, from 1.
        best: the highest means of accuracy and reward over `WINDOW` steps so far, and their last
            steps.
    """

    def __init__(self, config: RunConfig, foreign: bool = False) -> None:
        self.config, self._foreign = config, foreign
        self.steps: list[int] = []
        none = (math.nan, 0)
        self.best: dict[str, tuple[float, int]] = {"reward/accuracy": none, "reward/mean": none}
        self._early: list[Line] = []
        self._last: deque[Line] = deque(maxlen=LAST)
        self._totals: Counter[str] = Counter()
        self._first: dict[str, float] = {}

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of a step."""
        self.steps.append(int(line["step"]))
        known: Line = {
            name: float(value)
            for name, value in line.items()
            if isinstance(value, float | int) and abs(value) < MOST
        }
        if len(self._early) < WINDOW:
            self._early.append(known)
        self._last.append(known)
        self._totals.update(known)
        self._first = known | self._first
        for name, (best, _) in self.best.items():
            now = self.mean(name)
            if now > best or (best != best and now == now):
                self.best[name] = now, self.steps[-1]

    def lines(self, count: int = WINDOW) -> list[Line]:
        """What is known of the last steps, at most `LAST`."""
        return list(self._last)[-count:]

    def last(self, name: str, count: int = WINDOW) -> list[float]:
        """The known values of the last steps."""
        return [line[name] for line in self.lines(count) if name in line]

    def mean(self, name: str) -> float:
        """The mean of the known values of the last steps; NaN if there are none."""
        return _mean(self.last(name))

    def early(self, name: str) -> float:
        """The mean of the known values of the first steps; NaN if there are none."""
        return _mean([line[name] for line in self._early if name in line])

    def total(self, name: str) -> float:
        """The sum of all known values."""
        return self._totals[name]

    def first(self, name: str) -> float:
        """The first known value; NaN if there is none."""
        return self._first.get(name, math.nan)

    def knows(self, name: str) -> bool:
        """Whether some step has the metric; * stands for any text."""
        return name in self._first or ("*" in name and bool(fnmatch.filter(self._first, name)))

    @property
    def noise(self) -> float:
        """The standard error of the reward's mean over `WINDOW` steps, early in the run.

        The responses of a group count as one, because they share their prompt. Where the number of
        groups is unknown, as in the log of another trainer, it follows from the reward's changes
        from one step to the next.
        """
        groups = self.mean("reward/groups")
        if math.isnan(groups):
            changes = [
                (after["reward/mean"] - before["reward/mean"]) ** 2
                for part in (self._early, self._last)
                for before, after in itertools.pairwise(part)
            ]
            return math.sqrt(_mean(changes) / 2 / WINDOW)
        return self.early("reward/std") / math.sqrt(max(groups, 1.0) * WINDOW)

    @property
    def level(self) -> str:
        """The accuracy now, or the mean reward where nothing says which responses are right."""
        accuracy = self.mean("reward/accuracy")
        reward = f"mean reward {self.mean('reward/mean'):.3g}"
        return reward if math.isnan(accuracy) else f"accuracy {accuracy:.3f}"

    @property
    def gained(self) -> bool:
        """Whether the reward is above that of the first steps by more than twice the noise of a
        difference."""
        gain = self.mean("reward/mean") - self.early("reward/mean")
        return gain > 2 * math.sqrt(2) * self.noise

    @cached_property
    def inert(self) -> tuple[str, ...]:
        """Settings of the objective without effect, which have one in the preset itself.

        In another trainer, those of its objective that no number of updates changes, and penalties;
        none if the number of updates is unknown, as in a converted log.
        """
        config, inert = self.config, self.config.explanation().inert
        if self._foreign:
            updates_known = "updates_per_step" in config.training.model_fields_set
            inert = tuple(text for text in inert if updates_known and "training." not in text)
        try:
            with without_imports():  # a folder of a stranger may name the preset's file
                preset = build_config(layers_of(config.preset, [], profile=False))
                of_preset = preset.explanation().inert if config.preset else ()
        except (RlobjError, OSError):  # the preset's file is elsewhere now
            return inert
        return tuple(text for text in inert if text not in of_preset)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
