"""A run's own columns: numbers of responses or tokens from rows, rewards or functions."""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Self

from rlobj.base.errors import ConfigError, DataError, RunError, counted, reported
from rlobj.base.showing import shown
from rlobj.data import Problem
from rlobj.rewards.functions import ColumnValue, column_value
from rlobj.samplers import Response
from rlobj.settings.run_config import RunConfig
from rlobj.workers.pool import Pool
from rlobj.workers.worker import NoReply

DEADLINE = 30.0
"""Seconds that a function has for a response."""
_MEMORY = 4 << 30
"""Limit on the address space of the process that calls a function, in bytes."""


class OwnColumns:
    """Finds the values of `RunConfig.columns`; its context ends the processes of functions.

    Args:
        config: of the run.

    Raises:
        ConfigError: a function that may not be imported.
    """

    def __init__(self, config: RunConfig) -> None:
        self._sources, self._rewards = config.columns, config.rewards
        self._functions = dict[str, Pool]()
        for name, source in config.columns.items():
            if ":" in source:
                worker = "rlobj.rewards.functions:ColumnFunction"
                self._functions[name] = Pool.importing(source, worker, _MEMORY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._functions.values():
            pool.close()

    def check(self, problems: Sequence[Problem]) -> None:
        """Check that functions can be imported, and that all rows have the numbers that are read.

        Raises:
            ConfigError: a function cannot be imported.
            DataError: a row without a finite number.
        """
        for name, pool in self._functions.items():
            what = f"columns.{name}={self._sources[name]}: its import"
            with reported(ConfigError, what, NoReply), pool.worker() as worker:
                worker.ready()
        for name in [name for name, source in self._sources.items() if source == "data"]:
            for problem in problems:
                what = f"columns.{name}=data: {name!r} of problem {problem.id!r} is no number"
                with reported(DataError, what, LookupError, TypeError, ValueError, OverflowError):
                    value = column_value(problem.extra[name])
                    if not isinstance(value, float) or not math.isfinite(value):
                        raise ValueError(problem.extra[name])

    def of(self, response: Response, text: Callable[[int], str]) -> dict[str, ColumnValue]:
        """The value of each column of a response: one, or one for each of its tokens.

        Args:
            response: with its grade.
            text: token id -> its text, for functions.

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
                value = self._called(name, response, [*map(text, response.tokens)])
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

    def _called(self, name: str, response: Response, texts: list[str]) -> ColumnValue:
        problem = response.problem
        what = f"{self._sources[name]} failed on problem {problem.id!r}"
        with reported(RunError, what, NoReply), self._functions[name].worker() as worker:
            seed = random.getrandbits(63)  # what it draws does not depend on the calls before
            question = texts, problem.answer, dict(problem.extra), seed
            value, mistake = worker.ask(*question, seconds=DEADLINE)
        if mistake:
            raise RunError(f"{what}: {mistake}")
        return value
