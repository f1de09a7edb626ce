"""Populations of tokens, turns or responses, and what expressions that read them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.arguments import check_choice
from rlobj.objectives.rules.columns import declared_columns
from rlobj.objectives.rules.expression import Expr, Level, call

By = Literal["update", "group", "position", "response", "turn", "group_turn"] | str
"""Which populations there are. The name of a column of one's own means: those of a group that have
the same value in this column."""
Path = Literal["response", "turn"]
CUT_BY = ("update", "group", "response", "turn", "group_turn")
Unit = Literal["token", "response", "turn"]
"""What a cut or a quantile ranks."""
FINEST = {
    "update": Level.UPDATE,
    "group": Level.RESPONSE,
    "position": Level.TOKEN,
    "response": Level.RESPONSE,
    "turn": Level.TURN,
    "group_turn": Level.TURN,
}
"""What lies in one population: the update, a response, a turn or a token."""


class Populated:
    """What reads populations.

    Attributes:
        by: the populations.
        by_level: what lies in one population.
    """

    by: Any
    by_level: Level
    level: Any
    within: Any

    def settle_by(self, name: str, choices: Sequence[str]) -> None:
        """Check `by`, and find its level.

        Args:
            name: of the method.
            choices: what may be given, besides columns of one's own.

        Raises:
            ConfigError: `by` is neither.
        """
        levels, by = declared_columns(), self.by
        if isinstance(by, Expr):  # column("state", level="turn")
            levels, by = {str(by): by.level.name.lower()}, str(by)
        if by not in levels:
            check_choice(f"{name}(): by", by, (*choices, *levels))
        object.__setattr__(self, "by", by)
        level = Level[levels[by].upper()] if by in levels else FINEST[by]
        object.__setattr__(self, "by_level", level)

    def names(self) -> dict[str, Level]:
        return {} if self.by in FINEST else {self.by: self.by_level}

    def own_columns(self) -> list[str]:
        return [*(["turn"] if self.by_level == Level.TURN else []), *self.names()]


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

    def own_columns(self) -> list[str]:
        return [*(["turn"] if self.counted == Level.TURN else []), *super().own_columns()]


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
        self.settle_by(self.statistic, tuple(FINEST))
        if self.of.level == Level.UPDATE:
            raise ConfigError(
                f"{self.statistic}() needs a column, and '{self.of}' is the same for the whole "
                "update"
            )

    def __str__(self) -> str:
        return call(self, self.of, self.statistic)

    @property
    def level(self) -> Level:
        """By a column of one's own, each member of a population has the value; by the others, each
        population has one."""
        return self.by_level if self.by in FINEST else self.counted

    @property
    def counted(self) -> Level:
        """The unit of the population: the finer one of the number's and of the population's."""
        return max(self.of.level, self.by_level, Level.RESPONSE)
