"""A user's reward function: its calls, and the grades that it returns."""

import asyncio
import contextlib
import copy
import inspect
import io
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, counted, nearest
from rlobj.base.seeds import seed_generators
from rlobj.base.showing import place_of, shown
from rlobj.base.targets import import_target
from rlobj.base.threads import DaemonThreads
from rlobj.workers.worker import Failure

_KEYS = ("reward", "correct", "columns", "feedback")
MAPPING = '{"reward": 0.2, "correct": False}'
"""What a function returns to say whether a response is right, as an example in messages."""
WRONG = "wrong"
"""The reason of a call that returned something that is no reward."""
TURNS = "turns"
"""The column of a problem with the turns of a conversation about it, for graders: a list of dicts
with `text`, `observation`, `reward`, `correct`, `calls`, `errors`, `seconds`, `end` and `uses`: of
each call the `name`, `error` and `seconds`. A function that cannot take it does not get it."""

ColumnValue = float | Sequence[float]
"""The value of a column of one's own: of a whole response, or one for each of its tokens."""
Grade = tuple[float, bool | None, Mapping[str, ColumnValue], str]
"""The reward, whether the response is right, the columns and the feedback."""


class Call(NamedTuple):
    """One call of a function."""

    ids: Sequence[str]
    """Of the problems."""
    responses: Sequence[str]
    answers: Sequence[str]
    columns: Mapping[str, Sequence[Any]]
    seed: int | None = None
    """Of the global generators; None leaves them as they are."""


class Outcome(NamedTuple):
    """What became of a call."""

    grades: Sequence[Grade] = ()
    """Of each response."""
    reason: str = ""
    """"" if it succeeded, a `Failure`, `WRONG`, or a kind such as `error: TypeError`."""
    text: str = ""
    """The kind and the text of the exception, or the whole message if the reason is `WRONG`."""
    place: str = ""
    """Where it raised the exception or was at its deadline, from `place_of`."""


class WrongResult(ValueError):
    """The function returned something that is no reward."""


class Function:
    """A user's function.

    Args:
        function: `f(response, answer, **columns)`; see `Custom`.
        name: its name in messages.
        batched: one call grades all responses.
        deadline: time limit of a call of an `async` function, in seconds.
        concurrency: calls of an `async` function that run at the same time.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        batched: bool = False,
        deadline: float = 30.0,
        concurrency: int = 32,
    ) -> None:
        self._function, self._name, self._batched = function, name, batched
        self._deadline, self._concurrency = deadline, concurrency
        called = getattr(function, "__call__", None)  # of an object # noqa: B004
        self.is_async = any(map(inspect.iscoroutinefunction, (function, called)))
        self.place = place_of(function)
        self._takes_turns = _takes(function, TURNS)
        self._runner, self._lock = asyncio.Runner(), threading.Lock()

    def outcomes(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Make calls, each when its outcome is asked for; of an `async` function, all together.

        Those of several threads do not overlap.
        """
        with self._lock:
            if self.is_async:  # in a thread, as this one may have an event loop
                work = DaemonThreads().submit(self._runner.run, self._together(calls))
                yield from work.result()
                return
            for call in calls:
                try:
                    yield self._settled(call, self._called(call))
                except (Exception, SystemExit) as error:
                    yield self._failed(error)

    def close(self) -> None:
        """Cancel what runs in the event loop, and close it, unless a call was interrupted."""
        with contextlib.suppress(RuntimeError):
            DaemonThreads().submit(self._runner.close).result()

    def _called(self, call: Call) -> Any:
        columns = call.columns
        if not self._takes_turns:
            columns = {name: value for name, value in columns.items() if name != TURNS}
        if call.seed is not None:
            seed_generators(call.seed)
        if self._batched:
            return self._function(list(call.responses), list(call.answers), **columns)
        only = {name: value for name, [value] in columns.items()}
        return self._function(call.responses[0], call.answers[0], **only)

    async def _together(self, calls: Sequence[Call]) -> list[Outcome]:
        gate = asyncio.Semaphore(self._concurrency)

        async def one(call: Call) -> Outcome:
            async with gate:
                limit = asyncio.timeout(self._deadline)
                try:
                    async with limit:
                        result = await self._called(call)
                    return self._settled(call, result)
                except (Exception, SystemExit, asyncio.CancelledError) as error:
                    if not limit.expired():
                        return self._failed(error)
                    passed = traceback.walk_tb((error.__cause__ or error).__traceback__)
                    return Outcome((), str(Failure.TIMEOUT), "", place_of(self._function, passed))

        return await asyncio.gather(*map(one, calls))

    def _settled(self, call: Call, result: Any) -> Outcome:
        """The outcome of a call that returned. To read its result may fail, as the call may."""
        values = _listed(result) if self._batched else [result]
        count = len(call.responses)
        if len(values) != count:
            text = (
                f"Reward {self._name} returned {shown(result)} for {counted(count, 'response')}; "
                f"expected a list of {counted(count, 'reward')}, in the order of the responses."
            )
            return Outcome((), WRONG, text + self.place)
        grades: list[Grade] = []
        for value, response, problem in zip(values, call.responses, call.ids, strict=True):
            try:
                grades.append(_grade(value))
            except WrongResult as error:
                text = f"Reward {self._name} returned {shown(value)} on problem {problem!r}; "
                place = f"{self.place}\n  response: {shown(response)}"
                return Outcome((), WRONG, f"{text}{error}{place}")
        return Outcome(grades)

    def _failed(self, error: BaseException) -> Outcome:
        name = type(error).__name__
        place = place_of(self._function, traceback.walk_tb(error.__traceback__))
        return Outcome((), f"error: {name}", f"{name}: {shown(error, str)}", place)


class NamedFunction:
    """A function that a setting names, in a worker process.

    Args:
        target: of the function.
        settings: of `Function`.

    Attributes:
        opening: whether it is `async`, and the place of its definition.
    """

    def __init__(self, target: str, **settings: Any) -> None:
        function = import_target(target)
        if not callable(function):
            raise ConfigError(f"rewards.target {target!r} is not a function")
        self._function = Function(function, target, **settings)
        self.opening = self._function.is_async, self._function.place

    def answer(self, calls: Sequence[Call]) -> tuple[list[Outcome], str]:
        """The outcomes of calls, and what the function printed in them."""
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            outcomes = [*self._function.outcomes([*map(copy.deepcopy, calls)])]
        return outcomes, printed.getvalue()


class ColumnFunction:
    """A function of a response's tokens that settings name, in a worker process.

    Args:
        target: of the function.
    """

    opening = None

    def __init__(self, target: str) -> None:
        self._function = import_target(target)

    def answer(
        self, tokens: Sequence[str], answer: Any, columns: Mapping[str, Any], seed: int
    ) -> tuple[ColumnValue, str]:
        """What it returned; or NaN, and why that is no column."""
        seed_generators(seed)
        value = None
        try:
            value = self._function(tokens, answer, **columns)
            return column_value(value), ""
        except Exception as error:
            place = place_of(self._function, traceback.walk_tb(error.__traceback__))
            text = f"{type(error).__name__}: {shown(error, str)}; it returned {shown(value)}"
            return math.nan, f"{text}. Expected a number, or a list with one for each token{place}"


def _takes(function: Callable[..., Any], name: str) -> bool:
    """Whether a function can be called with an argument of this name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # of C
        return True
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _grade(value: Any) -> Grade:
    """The grade that a value stands for.

    Raises:
        WrongResult: the value is no reward.
    """
    entries = value if isinstance(value, Mapping) else {"reward": value}
    if unknown := [key for key in entries if key not in _KEYS]:
        raise WrongResult(f"{unknown[0]!r} is no key.{nearest(str(unknown[0]), _KEYS)}")
    right, feedback = entries.get("correct"), entries.get("feedback") or ""
    says = type(right).__name__ in ("bool", "bool_")  # also that of numpy
    columns = dict[str, ColumnValue]()
    try:
        reward = math.nan if entries["reward"] is None else _number(entries["reward"])
        for name, number in (entries.get("columns") or {}).items():
            columns[str(name)] = column_value(number)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        reward = math.inf
    if math.isinf(reward) or not (says or right is None) or not isinstance(feedback, str):
        raise WrongResult(
            "expected a finite number, True, False, or None for undecided; or a mapping such as "
            f"{MAPPING}, whose correct is True, False or left out, whose columns are numbers by "
            "name, whole ones of at most 2^53, and whose feedback is a text"
        )
    return reward, bool(right) if says and not math.isnan(reward) else None, columns, str(feedback)


def column_value(value: Any) -> ColumnValue:
    """A number, or a list of numbers; NaN for None.

    Raises:
        TypeError, ValueError, OverflowError: it is neither, or float64 does not hold it.
    """
    many = bool(getattr(value, "shape", isinstance(value, list | tuple)))
    items = value if many else [value]
    numbers = [math.nan if item is None else _number(item) for item in items]
    for item, number in zip(items, numbers, strict=True):
        if math.isinf(number):
            raise ValueError(value)
        if number.is_integer() and int(item) != number:
            raise ValueError(f"{item} is a whole number above 2^53, which columns do not hold")
    return numbers if many else numbers[0]


def _number(value: Any) -> float:
    """A value as a number; infinity for a text, such as "0.5", or an array of texts."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    is_text = isinstance(value, str | bytes | bytearray) or kind in ("U", "S")
    return math.inf if is_text else float(value)


def _listed(result: Any) -> list[Any]:
    """The items of a sequence or of an array with one axis; empty if the result is neither."""
    is_sequence = isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray)
    return list(result) if is_sequence or len(getattr(result, "shape", ())) == 1 else []
