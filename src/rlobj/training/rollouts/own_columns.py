"""A run's own columns: numbers of responses or tokens from rows, rewards or functions."""

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rlobj.base.errors import DataError, RunError, Setting, counted
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
            DataError: a row without a number.
        """
        for name, source in self._sources.items():
            for problem in problems if source == "data" else ():
                value = problem.extra.get(name)
                limit = 2**53 if isinstance(value, int) else sys.float_info.max
                if not isinstance(value, int | float) or not abs(value) <= limit:
                    raise DataError(
                        f"columns.{name}=data: expected a number {name!r} in each row, a whole "
                        f"one of at most 2^53, got {shown(value)} for problem {problem.id!r}, "
                        f"{shown(problem.prompt)}; its row also has "
                        f"{', '.join(problem.extra) or 'no other columns'}"
                    )

    def of(self, response: Response) -> dict[str, ColumnValue]:
        """The value of each column of a graded response: one, or one for each of its tokens.

        Raises:
            RunError: a function failed; or a value is missing or not finite although the response
                is decided; or there are not as many values as tokens.
        """
        problem, grade, columns = response.problem, response.grade, dict[str, ColumnValue]()
        for name, source in self._sources.items():
            value: Any = grade.columns.get(name)
            if source == "data":
                value = float(problem.extra[name])
            elif source != "reward":
                value = self._called(name, response)
            many = isinstance(value, Sequence)
            values = value if many else [math.nan if value is None else value]
            finite = grade.undecided or all(map(math.isfinite, values))
            if not finite or (many and len(values) != response.length):
                rewards = f"Reward {' or '.join(self._rewards.targets)}"
                raise RunError(
                    f"{rewards if source == 'reward' else source} returned as the column {name!r} "
                    f"{counted(len(values), 'value')}, {shown(value)}, on problem {problem.id!r}, "
                    f"whose response has {counted(response.length, 'token')}. Expected a finite "
                    f"number, or one per token; as {{'reward': 1, 'columns': {{{name!r}: 1}}}},"
                    " or from a function that gets the tokens: ",
                    Setting(f"columns.{name}", "FILE.py:FUNCTION"),
                )
            columns[name] = values if many else values[0]
        return columns

    def _called(self, name: str, response: Response) -> ColumnValue:
        function, problem, value = self._functions[name], response.problem, None
        texts = [*map(self._text, response.tokens)]
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
