"""The calls of a user's reward function, and its grades."""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from rlobj.base.errors import counted, nearest
from rlobj.base.seeds import seed_generators
from rlobj.base.showing import place_of, shown
from rlobj.base.threads import DaemonThreads

_KEYS = ("reward", "correct", "columns", "feedback")
MAPPING = '{"reward": 0.2, "correct": False}'
"""What a function returns to say whether a response is right, as an example in messages."""
NUMBER_FORM, MAPPING_FORM, COLUMNS_FORM = "number", "mapping", "columns"
"""A number; a mapping that says whether the response is right; one with columns, which does not."""
WRONG = "wrong"
"""The reason of a call that returned something that is no reward."""
TURNS = "turns"
"""The column of a problem with the turns of a conversation about it, for graders: a list of dicts
with `text`, `observation`, `reward`, `correct`, `calls`, `errors`, `seconds`, `end` and `uses`: of
each call the `name`, `error` and `seconds`. A function that cannot take it does not get it."""
BEGUN = "begun"
"""The reason of what is told before the outcome, when a call of an `async` function begins."""

Call = tuple[Sequence[str], Sequence[str], Sequence[str], Mapping[str, Sequence[Any]], int | None]
"""The problems' ids, the responses, the answers and the columns of one call; and the seed of the
global generators for it, None to leave them as they are."""


ColumnValue = float | Sequence[float]
"""The value of a column of one's own: of a whole response, or one for each of its tokens."""
Grade = tuple[float, bool | None, Mapping[str, ColumnValue], str]


class Outcome(NamedTuple):
    """What became of a call."""

    index: int
    """Which of the calls it was."""
    grades: Sequence[Grade] = ()
    """The reward, whether it is right, the columns and the feedback of each response."""
    reason: str = ""
    """"" if it succeeded, `timeout`, `crash`, `WRONG`, or a kind such as `error: TypeError`."""
    text: str = ""
    """The kind and the text of the exception, or the whole message if the reason is `WRONG`."""
    place: str = ""
    """Where it raised the exception or was at its deadline, from `place_of`."""
    form: str | None = None
    """The form of what the function returned in this call and before; None = not known yet."""
    counts: bool = True
    """False if another call kept this one from returning."""


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
        self.deadline, self._concurrency = deadline, concurrency
        called = getattr(function, "__call__", None)  # of an object # noqa: B004
        self.is_async = any(map(inspect.iscoroutinefunction, (function, called)))
        self.place = place_of(function)
        self._runner: asyncio.Runner | None = None
        self._form: str | None = None

    def refusal(self, columns: Iterable[Sequence[str]]) -> str | None:
        """Why the function cannot be called with these columns; None if it can."""
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # of C
            return None
        for names in columns:
            try:
                signature.bind("", "", **dict.fromkeys(names))
            except TypeError as error:
                first = "responses, answers" if self._batched else "response, answer"
                named = "".join(f", {column}=..." for column in names)
                return (
                    f"Reward {self._name} cannot be called as f({first}{named}): {error}. The "
                    f"columns of a problem are passed by name.{self.place}\n"
                    f"Expected: def {getattr(self._function, '__name__', 'f')}({first}, **columns)"
                )
        return None

    def outcomes(self, calls: Iterable[Call], form: str | None) -> Iterator[Outcome]:
        """Make calls, each when its outcome is asked for.

        Args:
            calls: what is graded.
            form: what the calls before returned: `NUMBER_FORM`, `MAPPING_FORM` or None.
        """
        self._form = form
        for index, call in enumerate(calls):
            yield self._settled(index, call, partial(self._called, call))

    def together(
        self, calls: Iterable[Call], form: str | None, tell: Callable[[Outcome], object]
    ) -> None:
        """Make calls of an `async` function, many at a time.

        Args:
            calls: what is graded.
            form: as in `outcomes`.
            tell: receives each outcome.
        """
        self._form = form
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            self._runner.get_loop().set_default_executor(DaemonThreads())
        loop = self._runner.get_loop()
        asyncio.set_event_loop(loop)
        loop.run_until_complete(self._all(calls, tell))

    def close(self) -> None:
        """Cancel what runs in the event loop, and close it."""
        if self._runner is not None:
            self._runner.close()

    def _called(self, call: Call) -> Any:
        _, responses, answers, columns, seed = call
        if TURNS in columns and self.refusal([(*columns,)]):  # a function for single turns
            columns = {name: value for name, value in columns.items() if name != TURNS}
        if seed is not None:
            seed_generators(seed)
        if self._batched:
            return self._function(list(responses), list(answers), **columns)
        only = {name: value for name, [value] in columns.items()}
        return self._function(responses[0], answers[0], **only)

    def _settled(self, index: int, call: Call, result: Callable[[], Any]) -> Outcome:
        """The outcome of a call. To read its result may fail, as the call may."""
        try:
            return Outcome(index, self._grades(call, result()), form=self._form)
        except WrongResult as error:
            return Outcome(index, (), WRONG, str(error))
        except (Exception, SystemExit) as error:
            return self._failed(index, error)

    def _failed(self, index: int, error: BaseException) -> Outcome:
        name = type(error).__name__
        place = place_of(self._function, traceback.walk_tb(error.__traceback__))
        text = f"{name}: {shown(error, str)}"
        return Outcome(index, (), f"error: {name}", text, place, self._form)

    async def _all(self, calls: Iterable[Call], tell: Callable[[Outcome], object]) -> None:
        gate = asyncio.Semaphore(self._concurrency)

        settled = set[int]()

        def once(outcome: Outcome) -> None:
            if outcome.index not in settled:
                settled.add(outcome.index)
                tell(outcome)

        async def awaited(index: int, call: Call) -> None:
            tell(Outcome(index, reason=BEGUN))
            try:
                result = await self._called(call)
            except BaseException as error:
                once(self._failed(index, error))
            else:
                once(self._settled(index, call, lambda: result))

        async def one(index: int, call: Call) -> None:
            async with gate:
                work = awaited(index, call)
                task = asyncio.ensure_future(work)
                if not (await asyncio.wait({task}, timeout=self.deadline))[0]:
                    place = place_of(self._function, _awaiting(work))
                    once(Outcome(index, (), "timeout", "", place, self._form))
                    task.cancel()

        await asyncio.gather(*(one(index, call) for index, call in enumerate(calls)))

    def _grades(self, call: Call, result: Any) -> list[Grade]:
        """The grades that a call returned.

        Raises:
            WrongResult: the call returned something else.
        """
        ids, responses, *_ = call
        values, count = _listed(result) if self._batched else [result], len(responses)
        if len(values) != count:
            raise WrongResult(
                f"Reward {self._name} returned {shown(result)} for {counted(count, 'response')}; "
                f"expected a list of {counted(count, 'reward')}, in the order of the responses."
                f"{self.place}"
            )
        grades: list[Grade] = []
        for value, response, problem in zip(values, responses, ids, strict=True):
            try:
                grades.append(self._grade(value))
            except WrongResult as error:
                raise WrongResult(
                    f"Reward {self._name} returned {shown(value)} on problem {problem!r}; {error}"
                    + " Set batched: true if it grades all responses in one call."
                    * isinstance(value, list)
                    + f"{self.place}\n  response: {shown(response)}"
                ) from None
        return grades

    def _grade(self, value: Any) -> Grade:
        """The grade that a value stands for. Values have the same form in every call.

        Raises:
            WrongResult: the value is no reward, or of another form than those before.
        """
        mapped = isinstance(value, Mapping)
        entries = value if mapped else {"reward": value}
        if unknown := [key for key in entries if key not in _KEYS]:
            raise WrongResult(f"{unknown[0]!r} is no key.{nearest(str(unknown[0]), _KEYS)}")
        try:
            reward = math.nan if entries["reward"] is None else _number(entries["reward"])
        except (KeyError, TypeError, ValueError, OverflowError):
            reward = math.inf
        undecided, right = math.isnan(reward), entries.get("correct")
        says = type(right).__name__ in ("bool", "bool_")  # also that of numpy
        silent = "columns" in entries or self._form == COLUMNS_FORM
        silent = mapped and silent and "correct" not in entries
        if math.isinf(reward) or (mapped and not (undecided or says or silent)):
            number = "a finite number, True, False, or None for undecided"
            mapping = f"a mapping such as {MAPPING}, whose correct is True or False, or "
            mapping += '{"reward": None} for undecided'
            raise WrongResult(f"expected {mapping if mapped else number}.")
        form = COLUMNS_FORM if silent else MAPPING_FORM if mapped else NUMBER_FORM
        if mapped or not undecided:  # None and NaN fit both forms
            if self._form not in (None, form):
                raise WrongResult(
                    "the calls before returned another form, or None in the call before the run. "
                    f"Return a number in every call; or in every call a mapping such as {MAPPING}, "
                    'and {"reward": None} for undecided; with "columns": {} if others have columns.'
                )
            self._form = form
        try:
            numbers = (entries.get("columns") or {}).items()
            columns = {name: column_value(number) for name, number in numbers}
        except (AttributeError, TypeError, ValueError, OverflowError):
            example = '{"reward": 1.0, "columns": {"step_ok": 0.5}}, or with lists of numbers.'
            what = "numbers by name, whole ones of at most 2^53"
            raise WrongResult(f"expected {what}, such as {example}") from None
        feedback = entries.get("feedback") or ""
        if not isinstance(feedback, str):
            raise WrongResult(f"its feedback is {shown(feedback)}; expected a text.")
        return reward, bool(right) if says and not undecided else None, columns, feedback


def column_value(value: Any) -> ColumnValue:
    """A number, or a list of numbers; NaN for None.

    Raises:
        TypeError, ValueError, OverflowError: it is neither, or float64 does not hold it.
    """
    many = bool(getattr(value, "shape", isinstance(value, list | tuple)))
    items = value if many else [value]
    numbers = [math.nan if item is None else _number(item) for item in items]
    if math.inf in map(abs, numbers):
        raise ValueError(value)
    for item, number in zip(items, numbers, strict=True):
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


def _awaiting(coroutine: Coroutine[Any, Any, Any]) -> Iterator[tuple[FrameType, int]]:
    """The frame of a coroutine, of the one that it awaits, and so on."""
    inner: Any = coroutine
    while (frame := getattr(inner, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        inner = inner.cr_await
