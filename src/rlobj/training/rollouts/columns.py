"""A run's own columns: the values that rules read of each response."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence

from rlobj.base.errors import DataError, RunError, counted
from rlobj.base.targets import import_target, place_of, shown
from rlobj.config.run_config import RunConfig
from rlobj.data import Problem
from rlobj.rewards import Graded
from rlobj.rewards.function_worker import ColumnValue, column_value


class OwnColumns:
    """Finds the values of `RunConfig.columns`.

    Args:
        config: of the run.
        text: token id -> its text, for functions of one's own.

    Raises:
        ConfigError: a function that cannot be imported.
    """

    def __init__(self, config: RunConfig, text: Callable[[int], str] = str) -> None:
        self._sources, self._text = config.columns, text
        self._rewards = " or ".join(config.rewards.targets)
        targets = {x: y for x, y in self._sources.items() if y not in ("data", "reward")}
        self._functions = {name: import_target(target) for name, target in targets.items()}

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that the rows of all problems have the numbers that are read from them.

        Raises:
            DataError: a row without a number.
        """
        for name in [name for name, source in self._sources.items() if source == "data"]:
            for problem in problems:
                value = problem.extra.get(name)
                if not isinstance(value, int | float) or not math.isfinite(value):
                    raise DataError(
                        f"columns.{name}=data: expected a number {name!r} in each row, got "
                        f"{shown(value)} for problem {problem.id!r}, {shown(problem.prompt)}. Its "
                        f"other columns: {', '.join(['answer', *problem.extra])}"
                    )

    def of(self, problem: Problem, tokens: Sequence[int], grade: Graded) -> dict[str, ColumnValue]:
        """The value of each column: one for the response, or one for each of its tokens.

        Raises:
            RunError: a function failed; or a value is missing or not finite although the response
                is decided; or there are not as many values as tokens.
        """
        found: dict[str, ColumnValue] = {}
        for name, source in self._sources.items():
            who, value = source, grade.columns.get(name, math.nan)
            if source == "data":
                value = float(problem.extra[name])
            elif source == "reward":
                who = f"Reward {self._rewards}"
            else:
                value = self._called(name, problem, tokens)
            if wrong := _mistake(name, value, len(tokens), grade.undecided):
                raise RunError(f"{who} returned {wrong}; on problem {problem.id!r}")
            found[name] = value
        return found

    def _called(self, name: str, problem: Problem, tokens: Sequence[int]) -> ColumnValue:
        function, texts, value = self._functions[name], [*map(self._text, tokens)], None
        try:
            value = function(texts, problem.answer, **problem.extra)
            return column_value(value)
        except Exception as error:
            place = place_of(function, traceback.walk_tb(error.__traceback__))
            raise RunError(
                f"{self._sources[name]} failed on problem {problem.id!r}: {type(error).__name__}: "
                f"{shown(error, str)}; it returned {shown(value)}. Expected f(tokens, answer, "
                f"**columns) -> a number, or a list with one number for each token.{place}"
            ) from error


def _mistake(name: str, value: ColumnValue, tokens: int, undecided: bool) -> str:
    """What is wrong with a value; "" = nothing."""
    many = isinstance(value, Sequence)
    if many and len(value) != tokens:
        return (
            f"{counted(len(value), 'value')} of the column {name!r} for a response of "
            f"{counted(tokens, 'token')}. Expected one number for the response. For one for each "
            f"token, use a function that gets the tokens: set columns.{name}=FILE.py:FUNCTION"
        )
    if undecided or all(map(math.isfinite, value if many else (value,))):
        return ""
    return (
        f"no number, or NaN, as the column {name!r}. Expected a finite number if the response is "
        f'decided; from a reward as {{"reward": ..., "columns": {{"{name}": ...}}}}'
    )
