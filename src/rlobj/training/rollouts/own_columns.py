"""A run's own columns: numbers of responses or tokens from rows, rewards or functions."""

import math
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rlobj.base.errors import DataError, RunError, counted, reported
from rlobj.base.showing import place_of, shown
from rlobj.base.targets import import_target
from rlobj.data import Problem
from rlobj.rewards.functions import ColumnValue, column_value
from rlobj.samplers import Response
from rlobj.settings.run_config import RunConfig


class OwnColumns:
    """Finds the values of `RunConfig.columns`.

    Args:
        config: of the run.
        text: token id -> its text, for functions of one's own.

    Raises:
        ConfigError: a function that cannot be imported.
    """

    def __init__(self, config: RunConfig, text: Callable[[int], str] = str) -> None:
        self._sources, self._rewards, self._text = config.columns, config.rewards, text
        self._functions = {
            name: import_target(source) for name, source in config.columns.items() if ":" in source
        }

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that the rows of all problems have the numbers that are read from them.

        Raises:
            DataError: a row without a finite number.
        """
        for name in [name for name, source in self._sources.items() if source == "data"]:
            for problem in problems:
                what = f"columns.{name}=data: {name!r} of problem {problem.id!r} is no number"
                with reported(DataError, what, LookupError, TypeError, ValueError, OverflowError):
                    if not math.isfinite(column_value(problem.extra[name])):  # nor is a list
                        raise ValueError(problem.extra[name])

    def of(self, response: Response) -> dict[str, ColumnValue]:
        """The value of each column of a response: one, or one for each of its tokens.

        Raises:
            RunError: a function failed; or a value is missing or not finite although the response
                is decided; or there are not as many values as tokens.
        """
        problem, grade, columns = response.problem, response.grade, dict[str, ColumnValue]()
        for name, source in self._sources.items():
            value: Any = grade.columns.get(name)
            if source == "data":
                value = column_value(problem.extra[name])
            elif source != "reward":
                value = self._called(name, response)
            many = isinstance(value, Sequence)
            values = value if many else [math.nan if value is None else value]
            finite = grade.undecided or all(map(math.isfinite, values))
            if not finite or (many and len(values) != response.length):
                source = " or ".join(self._rewards.targets) if source == "reward" else source
                raise RunError(
                    f"{source} returned as the column {name!r} {counted(len(values), 'value')}, "
                    f"{shown(value)}, on problem {problem.id!r}. Expected a finite "
                    f"number, or one for each of {counted(response.length, 'token')}"
                )
            columns[name] = values if many else values[0]
        return columns

    def _called(self, name: str, response: Response) -> ColumnValue:
        function, problem, value = self._functions[name], response.problem, None
        try:
            value = function([*map(self._text, response.tokens)], problem.answer, **problem.extra)
            return column_value(value)
        except Exception as error:
            place = place_of(function, traceback.walk_tb(error.__traceback__))
            raise RunError(
                f"{self._sources[name]} failed on problem {problem.id!r}: {type(error).__name__}: "
                f"{shown(error, str)}; it returned {shown(value)}. Expected a number, or a list "
                f"with one for each token{place}"
            ) from error
