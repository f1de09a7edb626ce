"""The reward `custom`: the result of your function, which may fail, hang, or be `async`."""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlobj.base.errors import ConfigError, RunError, counted, nearest
from rlobj.base.progress import beat
from rlobj.base.targets import import_target
from rlobj.rewards.calling import Call, Calls, Outcome, place_of, shown
from rlobj.rewards.kinds import Graded, Grader, Reward

if TYPE_CHECKING:
    from rlobj.data import Problem

logger = logging.getLogger(__name__)

RECENT = 1000
"""The last calls, among which failures are counted."""
_DAY = 86_400.0
_KEYS = ("reward", "correct")
MAPPING = '{"reward": 0.2, "correct": False}'
"""What a function returns to say whether a response is right, as an example in messages."""


class Custom(Reward):
    """The result of your function `f(response, answer, **columns)`: a number, or a mapping.

    `answer` is the gold answer of the problem and `columns` holds the other columns of its row.
    None and NaN mean undecided. A number does not say whether the response is right, so there is no
    accuracy; `{"reward": 0.2, "correct": False}` does. The function may be `async`. Before a run
    starts, it is called once, with the answer of the first problem as the response.
    """

    target: str
    """package.module:function, or path/to/file.py:function"""
    deadline: float = Field(default=30.0, gt=0, le=_DAY)
    """time limit for one call, in seconds; then its responses are undecided"""
    batched: bool = False
    """one call grades all responses: `f(responses, answers, **columns)` gets lists, and returns a
    list"""
    concurrency: int = Field(default=32, ge=1)
    """calls of an `async` function that run at the same time"""
    max_failures: int = Field(default=10, ge=0)
    """calls among the last 1,000 that may raise an exception or reach their deadline, so that their
    responses are undecided; one more stops the run"""

    def open(self) -> Grader:
        """Return a grader that calls the function.

        Raises:
            ConfigError: the target cannot be imported or is not a function.
        """
        function = import_target(self.target)
        if not callable(function):
            raise ConfigError(
                f"rewards.target {self.target!r} is not a function; expected "
                "package.module:function or path/to/file.py:function"
            )
        return function_grader(function, self.target, self)


def function_grader(
    function: Callable[..., Any], name: str, settings: Reward | None = None
) -> Grader:
    """Return a grader that calls a function, as `Custom` does.

    Args:
        function: `f(response, answer, **columns)`; see `Custom`.
        name: name of the function, for error messages.
        settings: deadline, batched, ...; other rewards than `Custom` have none. Default: those of
            `Custom`.
    """
    if not isinstance(settings, Custom):
        settings = Custom(target=name)
    return _CustomGrader(function, name, settings)


class _WrongResult(RunError):
    """The function returned something that is no reward."""


class _CustomGrader(Grader):
    def __init__(self, function: Callable[..., Any], name: str, settings: Custom) -> None:
        self.batched, self._name, self._settings = settings.batched, name, settings
        self._calls = Calls(function, settings.deadline, settings.concurrency)
        self._failed: deque[bool] = deque(maxlen=RECENT)
        self._warned: set[str] = set()
        self._mapped = self._known = False  # whether it returns mappings, and whether it showed it

    @property
    def says_right(self) -> bool:
        return self._mapped

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def check(self, problems: Sequence[Problem]) -> None:
        """Check the function's parameters, and call it for the answer of the first problem."""
        self._check_parameters(problems)
        for problem in problems[:1]:
            copies = 1 + self.batched  # a function of many must return many
            part = [problem.answer] * copies, [problem] * copies
            [outcome] = self._calls.outcomes([self._call(*part)])
            self._calls.close()
            if outcome.reason:
                raise ConfigError(
                    f"{self._failure(outcome, *part)}\nIt was called before the run, with the "
                    "answer of the first problem as the response."
                )
            self._known = True

    def _check_parameters(self, problems: Sequence[Problem]) -> None:
        function = self._calls.function
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of C
            return
        for columns in dict.fromkeys(tuple(problem.extra) for problem in problems):
            try:
                signature.bind("", "", **dict.fromkeys(columns))
            except TypeError as error:
                first = "responses, answers" if self.batched else "response, answer"
                named = "".join(f", {column}=..." for column in columns)
                raise ConfigError(
                    f"Reward {self._name} cannot be called as f({first}{named}): {error}. The "
                    f"columns of a problem are passed by name.{place_of(function)}\n"
                    f"Expected: def {getattr(function, '__name__', 'f')}({first}, **columns)"
                ) from None

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response."""
        parts = [([text], [problem]) for text, problem in zip(responses, problems, strict=True)]
        if self.batched and parts:
            parts = [(list(responses), list(problems))]
        graded: list[Graded] = []
        with closing(self._calls.outcomes([self._call(*part) for part in parts])) as outcomes:
            for part, outcome in zip(parts, outcomes, strict=True):
                graded += self._graded(outcome, *part)
                beat()
        return graded

    def _call(self, responses: Sequence[str], problems: Sequence[Problem]) -> Call:
        """The arguments of a call: lists, or without `batched` the only values in them."""
        names = dict.fromkeys(name for problem in problems for name in problem.extra)
        columns = {name: [problem.extra.get(name) for problem in problems] for name in names}
        answers = [problem.answer for problem in problems]
        read = partial(self._rewards, responses, problems)
        if self.batched:
            return Call((list(responses), answers), columns, read)
        only = {name: value for name, [value] in columns.items()}
        return Call((responses[0], answers[0]), only, read)

    def _graded(
        self, outcome: Outcome, responses: Sequence[str], problems: Sequence[Problem]
    ) -> list[Graded]:
        """The grades of the responses of a call; they are undecided if it failed.

        Raises:
            RunError: too many calls have failed, or this one returned something that is no reward.
        """
        self._failed.append(bool(outcome.reason) and outcome.counts)
        if not outcome.reason:
            return outcome.value
        if isinstance(outcome.error, _WrongResult):
            raise outcome.error
        message = self._failure(outcome, responses, problems)
        allowed, failed = self._settings.max_failures, sum(self._failed)
        if failed > allowed:
            seen = f"{failed} of the last {counted(len(self._failed), 'call')} failed; "
            raise RunError(
                f"{message}\n{seen * (failed > 1)}rewards.max_failures is {allowed}."
            ) from outcome.error
        if outcome.reason not in self._warned:
            self._warned.add(outcome.reason)
            logger.warning(
                "%s\nThe response is undecided. Such calls are not shown again.", message
            )
        return [Graded(math.nan, None, outcome.reason, None)] * len(responses)

    def _failure(
        self, outcome: Outcome, responses: Sequence[str], problems: Sequence[Problem]
    ) -> str:
        """What happened in a call, where, and on which response."""
        if isinstance(outcome.error, _WrongResult):
            return str(outcome.error)
        on = f"problem {problems[0].id!r}" if len(problems) == 1 else f"{len(problems)} responses"
        deadline = self._settings.deadline
        what = f"Reward {self._name} did not return within {deadline:g} seconds on {on}"
        if outcome.error is not None:
            what = f"Reward {self._name} failed on {on}: {outcome.text}"
        return f"{what}{outcome.place}\n  response: {shown(responses[0])}"

    def _rewards(
        self, responses: Sequence[str], problems: Sequence[Problem], result: Any
    ) -> list[Graded]:
        """The grades that a call returned. This runs in the thread of the call.

        Raises:
            _WrongResult: the call returned something else.
        """
        values, count = _listed(result) if self.batched else [result], len(responses)
        if len(values) != count:
            raise _WrongResult(
                f"Reward {self._name} returned {shown(result)} for {counted(count, 'response')}; "
                f"expected a list of {counted(count, 'reward')}, in the order of the responses."
                f"{place_of(self._calls.function)}"
            )
        grades: list[Graded] = []
        for value, response, problem in zip(values, responses, problems, strict=True):
            try:
                grades.append(self._grade(value))
            except _WrongResult as error:
                raise _WrongResult(
                    f"Reward {self._name} returned {shown(value)} on problem {problem.id!r}; "
                    f"{error}"
                    + " Set batched: true if it grades all responses in one call."
                    * isinstance(value, list)
                    + f"{place_of(self._calls.function)}\n  response: {shown(response)}"
                ) from None
        return grades

    def _grade(self, value: Any) -> Graded:
        """The grade that a value stands for. Values have the same form in every call.

        Raises:
            _WrongResult: the value is no reward, or of another form than those before.
        """
        mapped = isinstance(value, Mapping)
        given = value if mapped else {"reward": value}
        if unknown := [key for key in given if key not in _KEYS]:
            raise _WrongResult(f"{unknown[0]!r} is no key.{nearest(str(unknown[0]), _KEYS)}")
        try:
            reward = math.nan if (found := given["reward"]) is None else _number(found)
        except (KeyError, TypeError, ValueError, OverflowError):
            reward = math.inf
        undecided, right = math.isnan(reward), given.get("correct")
        says = type(right).__name__ in ("bool", "bool_")  # also that of numpy
        if math.isinf(reward) or (mapped and not (undecided or says)):
            number = "a finite number, True, False, or None for undecided"
            mapping = f"a mapping such as {MAPPING}, whose correct is True or False, or "
            mapping += '{"reward": None} for undecided'
            raise _WrongResult(f"expected {mapping if mapped else number}.")
        if mapped or not undecided:  # None and NaN fit both forms
            if self._known and mapped != self._mapped:
                raise _WrongResult(
                    "the calls before returned another form, or None in the call before the run. "
                    f"Return a number in every call; or in every call a mapping such as {MAPPING}, "
                    'and {"reward": None} for undecided.'
                )
            self._mapped, self._known = mapped, True
        return Graded(reward, bool(right) if says and not undecided else None, "custom", None)


def _number(value: Any) -> float:
    """A value as a number; infinity for a text, such as "0.5", or an array of texts."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    is_text = isinstance(value, str | bytes | bytearray) or kind in ("U", "S")
    return math.inf if is_text else float(value)


def _listed(result: Any) -> list[Any]:
    """The items of a sequence or of an array with one axis; empty if the result is neither."""
    is_sequence = isinstance(result, Sequence) and not isinstance(result, str | bytes | bytearray)
    return list(result) if is_sequence or len(getattr(result, "shape", ())) == 1 else []
