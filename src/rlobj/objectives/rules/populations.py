"""Populations of tokens or of responses, and the fields of statistics of a population."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from rlobj.base.errors import ConfigError
from rlobj.objectives.rules.expression import Expr, Level, call, check_choice, plain

By = Literal["update", "group", "position", "response"]
Unit = Literal["token", "response"]
"""What a cut or a quantile ranks."""


class Ranking:
    """What cuts, quantiles and samples have in common: they rank tokens or responses."""

    of: Any

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens or responses."""
        return Level.RESPONSE if self.of == "response" else Level.TOKEN

    @property
    def level(self) -> Level:
        return self.counted


@dataclass(frozen=True)
class OfPopulation:
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
        levels = {"update": Level.UPDATE, "position": Level.TOKEN}
        return levels.get(self.by, Level.RESPONSE)

    @property
    def counted(self) -> Level:
        """The unit of the population: tokens or responses."""
        tokens = self.by == "position" or self.of.level == Level.TOKEN
        return Level.TOKEN if tokens else Level.RESPONSE


def check_amount(amount: Any) -> Any:
    """The size of a sample: a plain number, or an expression with one value for the update."""
    given = isinstance(amount, Expr) and not amount.is_rule and amount.level == Level.UPDATE
    whole = type(amount) is int and amount >= 0
    if not given and not whole and not (isinstance(amount, float) and 0 <= amount <= 1):
        raise ConfigError(
            f"sample({amount}): expected a whole number of tokens, a float in [0, 1], or an "
            "expression with one value for the update, such as (prob < 0.002).count()"
        )
    return amount if isinstance(amount, Expr) else plain(amount)
