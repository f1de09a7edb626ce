"""A run's own columns: numbers of responses or tokens from rows, rewards or functions."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from rlobj.base.errors import DataError, RunError, Setting, counted
from rlobj.base.showing import place_of, shown
from rlobj.base.targets import import_target
from rlobj.data import Problem
from rlobj.rewards import Graded
from rlobj.rewards.functions import ColumnValue, column_value
from rlobj.samplers import Sample
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
        self._functions = {x: import_target(y) for x, y in config.columns.items() if ":" in y}

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that the rows of all problems have the numbers that are read from them.

        Raises:
            DataError: a row without a number.
        """
        for name, source in self._sources.items():
            for problem in problems if source == "data" else ():
                value = problem.extra.get(name)
                if not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                    raise DataError(
                        f"columns.{name}=data: expected a number {name!r} in each row, got "
                        f"{shown(value)} for problem {problem.id!r}, {shown(problem.prompt)}; its "
                        f"row also has {', '.join(problem.extra) or 'no other columns'}"
                    )

    def of(self, problem: Problem, sample: Sample, grade: Graded) -> dict[str, ColumnValue]:
        """The value of each column: one for the response, or one for each of its tokens.

        Raises:
            RunError: a function failed; or a value is missing or not finite although the response
                is decided; or there are not as many values as tokens.
        """
        columns: dict[str, ColumnValue] = {}
        for name, source in self._sources.items():
            value: Any = grade.columns.get(name)
            if source == "data":
                value = float(problem.extra[name])
            elif source != "reward":
                value = self._called(name, problem, sample)
            many = isinstance(value, Sequence)
            values = value if many else [math.nan if value is None else value]
            finite = grade.undecided or all(map(math.isfinite, values))
            if not finite or (many and len(values) != len(sample.tokens)):
                rewards = f"Reward {' or '.join(self._rewards.targets)}"
                raise RunError(
                    f"{rewards if source == 'reward' else source} returned as the column {name!r} "
                    f"{counted(len(values), 'value')}, {shown(value)}, on problem {problem.id!r}, "
                    f"whose response has {counted(len(sample.tokens), 'token')}. Expected a finite "
                    f"number, or one per token; as {{'reward': 1, 'columns': {{{name!r}: 1}}}},"
                    " or from a function that gets the tokens: ",
                    Setting(f"columns.{name}", "FILE.py:FUNCTION"),
                )
            columns[name] = values if many else values[0]
        return columns

    def _called(self, name: str, problem: Problem, sample: Sample) -> ColumnValue:
        function, texts, value = self._functions[name], [*map(self._text, sample.tokens)], None
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
