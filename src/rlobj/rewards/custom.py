"""The reward `custom`: the result of your function, which may fail or be `async`."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rlobj.base.errors import ConfigError, RunError, counted
from rlobj.base.showing import shown
from rlobj.rewards.calls import Calls, CallsInProcess, InProcess
from rlobj.rewards.functions import MAPPING_FORM, NUMBER_FORM, WRONG, Call, Outcome
from rlobj.rewards.kinds import Graded, Grader, Reward

if TYPE_CHECKING:
    from rlobj.data import Problem

logger = logging.getLogger(__name__)

RECENT = 1000
"""The last calls, among which failures are counted."""
_DAY = 86_400.0


class Custom(Reward):
    """The result of your function `f(response, answer, **columns)`: a number, or a mapping.

    `answer` is the gold answer of the problem and `columns` holds the other columns of its row.
    None and NaN mean undecided. A number does not say whether the response is right, so there is no
    accuracy; `{"reward": 0.2, "correct": False}` does. A mapping may also have `columns`, numbers
    by name that rules read (see `RunConfig.columns`), and `feedback`, a text for the prompts of
    scores. The function may be `async`. Before a run
    starts, it is called once, with the answer of the first problem as the response. It runs in a
    process of its own, which is killed at the deadline.
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

    memory_gib: float | None = Field(default=None, gt=0)
    """limit on the address space of the process that calls the function, in GiB; null = none"""

    def open(self) -> Grader:
        """Return a grader that calls the function, in a process that has imported it.

        Raises:
            ConfigError: the target cannot be imported or is not a function.
        """
        settings = {name: getattr(self, name) for name in ("batched", "deadline", "concurrency")}
        memory = int((self.memory_gib or 0) * 2**30)
        opened = partial(InProcess, self.target, memory, settings)
        return _CustomGrader(CallsInProcess(opened, self.deadline), self.target, self)


def function_grader(
    function: Callable[..., Any], name: str, settings: Reward | None = None
) -> Grader:
    """Return a grader that calls a function, as `Custom` does, but in this process.

    Only an `async` function has a deadline: any other call takes as long as it takes.

    Args:
        function: `f(response, answer, **columns)`; see `Custom`.
        name: name of the function, for error messages.
        settings: deadline, batched, ...; other rewards than `Custom` have none. Default: those of
            `Custom`.
    """
    if not isinstance(settings, Custom):
        settings = Custom(target=name)
    calls = Calls(function, name, settings.batched, settings.deadline, settings.concurrency)
    return _CustomGrader(calls, name, settings)


class _CustomGrader(Grader):
    def __init__(self, calls: Calls | CallsInProcess, name: str, settings: Custom) -> None:
        self.batched, self._name, self._settings = settings.batched, name, settings
        self._calls = calls
        self._failed: deque[bool] = deque(maxlen=RECENT)
        self._warned: set[str] = set()

    @property
    def says_right(self) -> bool:
        return self._calls.form == MAPPING_FORM

    def __exit__(self, *_: object) -> None:
        self._calls.close()

    def check(self, problems: Sequence[Problem]) -> None:
        """Check the function's parameters, and call it for the answer of the first problem."""
        columns = list(dict.fromkeys(tuple(problem.extra) for problem in problems))
        if refusal := self._calls.refusal(columns):
            raise ConfigError(refusal)
        for problem in problems[:1]:
            copies = 1 + self.batched  # a function of many must return many
            part = [problem.answer] * copies, [problem] * copies
            [outcome] = self._calls.outcomes([_call(*part)], 0)
            self._calls.form = outcome.form or NUMBER_FORM
            if outcome.reason:
                raise ConfigError(
                    f"{self._failure(outcome, *part)}\nIt was called before the run, with the "
                    "answer of the first problem as the response."
                )

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response."""
        parts = [([text], [problem]) for text, problem in zip(responses, problems, strict=True)]
        if self.batched and parts:
            parts = [(list(responses), list(problems))]
        graded: list[Graded] = []
        calls, allowed = [_call(*part) for part in parts], self._settings.max_failures
        with closing(self._calls.outcomes(calls, allowed - sum(self._failed))) as outcomes:
            for part, outcome in zip(parts, outcomes, strict=True):
                graded += self._graded(outcome, *part)
        return graded

    def _graded(
        self, outcome: Outcome, responses: Sequence[str], problems: Sequence[Problem]
    ) -> list[Graded]:
        """The grades of the responses of a call; they are undecided if it failed.

        Raises:
            RunError: too many calls have failed, or this one returned something that is no reward.
        """
        self._failed.append(bool(outcome.reason) and outcome.counts)
        if not outcome.reason:
            return [
                Graded(reward, right, "custom", None, columns=columns, feedback=feedback)
                for reward, right, columns, feedback in outcome.grades
            ]
        message = self._failure(outcome, responses, problems)
        if outcome.reason == WRONG:
            raise RunError(message)
        allowed, failed = self._settings.max_failures, sum(self._failed)
        if failed > allowed:
            seen = f"{failed} of the last {counted(len(self._failed), 'call')} failed; "
            raise RunError(f"{message}\n{seen * (failed > 1)}rewards.max_failures is {allowed}.")
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
        if outcome.reason == WRONG:
            return outcome.text
        on = f"problem {problems[0].id!r}" if len(problems) == 1 else f"{len(problems)} responses"
        name, deadline = self._name, self._settings.deadline
        what = {
            "timeout": f"Reward {name} did not return within {deadline:g} seconds on {on}",
            "crash": f"Reward {name} {outcome.text} on {on}",
        }.get(outcome.reason, f"Reward {name} failed on {on}: {outcome.text}")
        return f"{what}{outcome.place}\n  response: {shown(responses[0])}"


def _call(responses: Sequence[str], problems: Sequence[Problem]) -> Call:
    names = dict.fromkeys(name for problem in problems for name in problem.extra)
    columns = {name: [problem.extra.get(name) for problem in problems] for name in names}
    ids, answers = [problem.id for problem in problems], [problem.answer for problem in problems]
    return ids, list(responses), answers, columns, None
