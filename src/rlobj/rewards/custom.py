"""The reward `custom`: the result of your function, which may fail or be `async`."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic import Field

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.showing import shown
from rlobj.data import Problem
from rlobj.rewards.functions import MAPPING, WRONG, Call, Function, Outcome
from rlobj.rewards.kinds import NO_REWARD, Graded, Grader, Reward
from rlobj.workers.pool import Failures, Pool
from rlobj.workers.worker import Failure, NoReply

_DAY = 86_400.0


class Custom(Reward):
    """The result of your function `f(response, answer, **columns)`: a number, or a mapping.

    `answer` is the gold answer of the problem and `columns` holds the other columns of its row.
    None and NaN mean undecided. A number does not say whether the response is right, so there is no
    accuracy; `{"reward": 0.2, "correct": False}` does. A mapping may also have `columns`, numbers
    by name that rules read (see `RunConfig.columns`), and `feedback`, a text for the prompts of
    scores. The function may be `async`. Before a run
    starts, it is called once, with the answer of the first problem as the response. A function that
    settings name runs in a process of its own, which is killed at the deadline; importing it has no
    limit. A function that is passed from Python runs in this process, without one.
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
        return _CustomGrader(_InWorker(self), self.target, self)


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
    limits = settings.batched, settings.deadline, settings.concurrency
    return _CustomGrader(Function(function, name, *limits), name, settings)


class _InWorker:
    """Calls the function that a setting names, in a worker process.

    Raises:
        ConfigError: the target may not be imported, cannot be imported, or is not a function.
    """

    def __init__(self, settings: Custom) -> None:
        self._deadline, self._concurrency = settings.deadline, settings.concurrency
        worker, memory = "rlobj.rewards.functions:NamedFunction", settings.memory_gib or 0
        names = ("batched", "deadline", "concurrency")
        arguments = {name: getattr(settings, name) for name in names}
        self._pool = Pool.importing(settings.target, worker, int(memory * 2**30), **arguments)
        import_fails = reported(ConfigError, f"target {settings.target!r}: its import", NoReply)
        with import_fails, self._pool.worker() as worker:
            worker.ready()
            self._is_async, self._definition = worker.opening

    def outcomes(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Make the calls; what became of each, in their order.

        Each call has a seed, so what the function draws does not depend on the calls beside it.
        Those of an `async` function are made together. If its process ends then, each is made
        again, alone; no other call is made twice.
        """
        seeded = [call._replace(seed=random.getrandbits(63)) for call in calls]
        left = deque([seeded] if self._is_async and calls else [[call] for call in seeded])
        while left:
            asked = left.popleft()
            try:
                yield from self._made(asked)
            except NoReply as error:
                if len(asked) == 1:
                    yield Outcome((), error.reason, str(error), self._definition)
                else:
                    left.extend([call] for call in asked)

    def close(self) -> None:
        """End the process."""
        self._pool.close()

    def _made(self, calls: Sequence[Call]) -> Sequence[Outcome]:
        """The outcomes of calls.

        Raises:
            NoReply: the process ended.
        """
        seconds = self._deadline
        if self._is_async:  # it keeps the deadlines itself, unless one call blocks all
            seconds = (seconds * 1.25 + 0.1) * math.ceil(len(calls) / self._concurrency)
        with self._pool.worker() as worker:
            outcomes, printed = worker.ask(calls, seconds=seconds)
        print(printed, end="")
        return outcomes


class _CustomGrader(Grader):
    def __init__(self, function: Function | _InWorker, name: str, settings: Custom) -> None:
        self.batched, self._name, self._deadline = settings.batched, name, settings.deadline
        self._function, self._says_right = function, None
        self._failures = Failures("rewards.max_failures", settings.max_failures)

    @property
    def says_right(self) -> bool:
        return bool(self._says_right)

    def __exit__(self, *_: object) -> None:
        self._function.close()

    def check(self, problems: Sequence[Problem]) -> None:
        """Call the function for the answer of the first problem."""
        for problem in problems[:1]:
            copies = 1 + self.batched  # a function of many must return many
            call = _call([problem.answer] * copies, [problem] * copies)
            [outcome] = self._function.outcomes([call])
            if outcome.reason:
                arguments = "responses, answers" if self.batched else "response, answer"
                raise ConfigError(
                    f"{self._failure(outcome, call)}\nIt was called before the run, with the "
                    f"answer of the first problem. Expected: def f({arguments}, **columns)"
                )
            self._says_right = any(right is not None for _, right, *_ in outcome.grades)

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        """Grade each response."""
        calls = [
            _call([text], [problem]) for text, problem in zip(responses, problems, strict=True)
        ]
        if self.batched and calls:
            calls = [_call(responses, problems)]
        outcomes = self._function.outcomes(calls)
        return [
            grade
            for call, outcome in zip(calls, outcomes, strict=True)
            for grade in self._graded(outcome, call)
        ]

    def _graded(self, outcome: Outcome, call: Call) -> list[Graded]:
        """The grades of the responses of a call; they are undecided if it failed.

        Raises:
            RunError: too many calls have failed, or this one returned something that is no reward.
        """
        message = self._failure(outcome, call) if outcome.reason else ""
        if outcome.reason == WRONG:
            raise RunError(message)
        self._failures.add(message, outcome.reason)
        if message:
            return [Graded(math.nan, None, outcome.reason, None)] * len(call.responses)
        graded: list[Graded] = []
        for reward, right, columns, feedback in outcome.grades:
            says = right is not None
            if self._says_right is None:
                self._says_right = says
            if says != self._says_right and not math.isnan(reward):
                raise RunError(
                    f"Reward {self._name}: some calls say whether the response is right, and "
                    f"others do not. Return in every call a number, or a mapping such as {MAPPING}"
                )
            reason = NO_REWARD if math.isnan(reward) else "custom"
            graded.append(Graded(reward, right, reason, None, columns=columns, feedback=feedback))
        return graded

    def _failure(self, outcome: Outcome, call: Call) -> str:
        """What happened in a call, where, and on which response."""
        if outcome.reason == WRONG:
            return outcome.text
        many = len(call.ids) > 1
        on = f"{len(call.ids)} responses" if many else f"problem {call.ids[0]!r}"
        what = f"Reward {self._name} failed on {on}: {outcome.text}"
        if outcome.reason == Failure.TIMEOUT:
            what = f"Reward {self._name} did not return within {self._deadline:g} seconds on {on}"
        elif outcome.reason == Failure.CRASH:
            what = f"Reward {self._name} {outcome.text} on {on}"
        return f"{what}{outcome.place}\n  response: {shown(call.responses[0])}"


def _call(responses: Sequence[str], problems: Sequence[Problem]) -> Call:
    names = dict.fromkeys(name for problem in problems for name in problem.extra)
    columns = {name: [problem.extra.get(name) for problem in problems] for name in names}
    ids, answers = [problem.id for problem in problems], [problem.answer for problem in problems]
    return Call(ids, list(responses), answers, columns)
