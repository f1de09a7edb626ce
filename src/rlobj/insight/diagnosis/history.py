"""The metrics of a run so far, as the checks of a diagnosis read them.

They are means over few steps, early and now.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from rlobj.base.errors import RlobjError
from rlobj.settings.building import build_config
from rlobj.settings.layers import layers_of
from rlobj.settings.run_config import RunConfig

WINDOW = 5
"""Steps in a mean. One step of 32 prompts has an accuracy with a standard error up to 0.09; the
mean of five steps has 0.04."""
MOST = 1e300
"""Larger numbers, which no metric has, count as absent."""


class History:
    """The metrics that checks read, one number a step; NaN where a line has none.

    Args:
        config: the run's.
        metrics: names of the metrics that are kept.
        foreign: another trainer made the run.
        run: the run's folder, as what a finding says to type names it.

    Attributes:
        steps: the steps, from 1.
        best: the highest mean of the accuracy over `WINDOW` steps so far, and its last step.
        best_reward: the same of the reward.
    """

    def __init__(
        self, config: RunConfig, metrics: Iterable[str], foreign: bool = False, run: str = "RUN"
    ) -> None:
        self.config, self.run, self._foreign = config, run, foreign
        self.steps: list[int] = []
        self.best = self.best_reward = (math.nan, 0)
        self._series = {name: array("d") for metric in metrics for name in self._names(metric)}
        self._totals = dict.fromkeys(self._series, 0.0)
        self._first: dict[str, float] = {}

    def _names(self, metric: str) -> list[str]:
        """The metrics that a name stands for: NAME is each score of the run."""
        scores = self.config.scores if "NAME" in metric else [""]
        return [metric.replace("NAME", score) for score in scores]

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the metrics of a step."""
        self.steps.append(int(line["step"]))
        for name, values in self._series.items():
            value = line.get(name)
            if not isinstance(value, float | int) or not abs(value) < MOST:
                value = math.nan
            elif name not in self._first:
                self._first[name] = value
            values.append(value)
            self._totals[name] += 0.0 if value != value else value
        self.best = self._better(self.best, "reward/accuracy")
        self.best_reward = self._better(self.best_reward, "reward/mean")

    def _better(self, best: tuple[float, int], name: str) -> tuple[float, int]:
        now = self.mean(name)
        return best if math.isnan(now) or now <= best[0] else (now, self.steps[-1])

    def last(self, name: str, count: int = WINDOW) -> list[float]:
        """The known values of the last steps."""
        return [value for value in self._series[name][-count:] if value == value]

    def together(self, *names: str) -> list[tuple[float, ...]]:
        """The values of some metrics at each of the last steps; NaN where one is unknown."""
        return list(zip(*(self._series[name][-WINDOW:] for name in names), strict=True))

    def mean(self, name: str) -> float:
        """The mean of the known values of the last steps; NaN if there are none."""
        return _mean(self.last(name))

    def early(self, name: str) -> float:
        """The mean of the known values of the first steps; NaN if there are none."""
        return _mean([value for value in self._series[name][:WINDOW] if value == value])

    def total(self, name: str) -> float:
        """The sum of all known values; added up as lines come."""
        return self._totals[name]

    def first(self, name: str) -> float:
        """The first known value; NaN if there is none."""
        return self._first.get(name, math.nan)

    def knows(self, name: str) -> bool:
        """Whether some step has the metric."""
        return any(self.first(metric) == self.first(metric) for metric in self._names(name))

    @property
    def noise(self) -> float:
        """The standard error of the reward's mean over `WINDOW` steps, early in the run.

        The responses of a group count as one, because they share their prompt.
        """
        groups = self.mean("reward/groups")
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
        config = self.config
        inert = _inert(config)
        if self._foreign:
            updates_known = "updates_per_step" in config.training.model_fields_set
            inert = tuple(text for text in inert if updates_known and "training." not in text)
        try:
            preset = build_config(layers_of(config.preset, [], profile=False))
        except (RlobjError, OSError):  # the preset's file is elsewhere now
            return inert
        of_preset = _inert(preset) if config.preset else ()
        return tuple(text for text in inert if text not in of_preset)


def _inert(config: RunConfig) -> tuple[str, ...]:
    return config.explanation().inert


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan
