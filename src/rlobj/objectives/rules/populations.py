"""Populations of tokens, turns or responses, and what expressions that read them have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.arguments import check_choice
from rlobj.objectives.rules.expression import Level, call

By = Literal["update", "group", "position", "response", "turn", "group_turn"]
Path = Literal["response", "turn"]
CUT_BY = ("update", "group", "response", "turn", "group_turn")
Unit = Literal["token", "response", "turn"]
"""What a cut or a quantile ranks."""
FINEST = {
    "update": Level.UPDATE,
    "position": Level.TOKEN,
    "turn": Level.TURN,
    "group_turn": Level.TURN,
}
"""What a population has its values for; each response has one by group and by response."""


def level_by(by: str) -> Level:
    """What an aggregate has one value for, by its populations."""
    return FINEST.get(by, Level.RESPONSE)


class Populated:
    """What reads populations."""

    by: Any

    def batch_columns(self) -> list[str]:
        by_turn = FINEST.get(self.by) == Level.TURN
        return [*(["turn"] if by_turn else []), *super().batch_columns()]  # type: ignore[misc]


class Ranking(Populated):
    """What cuts, quantiles and samples have in common: they rank tokens, turns or responses."""

    of: Any

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens, turns or responses."""
        return {"response": Level.RESPONSE, "turn": Level.TURN}.get(self.of, Level.TOKEN)

    @property
    def level(self) -> Level:
        return self.counted


@dataclass(frozen=True)
class OfPopulation(Populated):
    """A statistic of a population: the fields of aggregates that are numbers and of those that are
    rules.

    Attributes:
        of: the Number or Rule.
        statistic: the method's name.
        by: the populations.
        within: the Rule whose members count; None = all.
    """

    of: Any
    statistic: str
    by: By = "update"
    within: Any = None

    def __post_init__(self) -> None:
        check_choice(f"{self.statistic}(): by", self.by, get_args(By))
        if self.of.level == Level.UPDATE:
            raise ConfigError(
                f"{self.statistic}() needs a column, and '{self.of}' is the same for the whole "
                "update"
            )

    def __str__(self) -> str:
        return call(self, self.of, self.statistic)

    @property
    def level(self) -> Level:
        return level_by(self.by)

    @property
    def counted(self) -> Level:
        """The unit of the population: the finer one of the number's and of the population's."""
        return max(self.of.level, level_by(self.by), Level.RESPONSE)
