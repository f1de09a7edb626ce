"""The interface of environments: what they are asked, what they answer, and how they are called.

Functions of the user are called in threads, and their awaitables run on the event loop.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.showing import place_of_error, shown
from rlobj.base.threads import DaemonThreads
from rlobj.samplers.response import ToolUse
from rlobj.workers.worker import Failure, NoReply

Message = dict[str, Any]
"""A message as chat templates read it: `role`, `content`, and perhaps `tool_calls` or `name`."""


@dataclass(frozen=True)
class Call:
    """A call of a sub-agent: the policy itself answers it, in a row of its own.

    Attributes:
        messages: what it reads first.
        tools: functions that it may call, over several turns; a turn without calls ends its work.
    """

    messages: Sequence[Message]
    tools: Sequence[Callable[..., Any]] = ()


@dataclass(frozen=True)
class Turn:
    """What an environment answers to one turn of the policy.

    Attributes:
        observation: what the policy reads next: a text, or messages; "" = nothing.
        reward: of this turn.
        done: the conversation has ended, and nobody reads the observation.
        correct: whether the whole response is right, for accuracy; None = the environment does not
            say.
        uses: the calls of tools in this turn.
        restart: messages with which the policy goes on in a new context, such as a summary; alone,
            without an observation. () = it goes on in the old one.
        calls: of sub-agents, which answer side by side. After the observation, the policy reads the
            last text of each, as a message of the role "user".
    """

    observation: str | Sequence[Message] = ""
    reward: float = 0.0
    done: bool = False
    correct: bool | None = None
    uses: tuple[ToolUse, ...] = ()
    restart: Sequence[Message] = ()
    calls: Sequence[Call] = ()


ENDS = {
    "turns": "the conversation reached its number of turns",
    "tokens": "the conversation reached its number of tokens",
    "errors": "the conversation reached its number of failed calls",
    "broken": "the environment failed",
}
"""Why a conversation ended before it was done, in words."""
LIMITS = ("turns", "tokens", "errors")
"""The ends that are limits."""


class Environment(Protocol):
    """One conversation's other side; there is one object per conversation.

    Methods are plain or `async`. Plain ones are called in threads; `async` ones have a deadline. If
    an object has the attribute `conversation_seed`, it is set before each step. A method
    `reward_at_limit() -> float` returns the rest of the reward of a conversation that reached a
    limit.
    """

    def reset(self, problem: Any) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Begin a conversation.

        Args:
            problem: a `Problem`: its `prompt`, `answer` and `extra` columns.

        Returns:
            The messages that the policy reads first; None = the problem's prompt as it is.
        """
        ...

    def step(self, messages: Sequence[Message]) -> Turn | Awaitable[Turn]:
        """Answer a turn of the policy.

        Args:
            messages: the conversation so far, or since the last `restart`. The last one is the
                policy's: `content` is its text, and `tool_calls` are the calls that were found in
                it, if there are tools.
        """
        ...


class NoRoom(ConfigError):
    """An opening leaves no room for a turn. The same step would fail again."""


class Adapter:
    """An environment of rlobj's own, which calls an object or tools of the user's.

    Its methods are `async`. If the user's code fails in them, they raise `NoReply`.

    Attributes:
        name: of the user's class.
        conversation_seed: of the calls.
    """

    def __init__(self, name: str = "") -> None:
        self.name, self.conversation_seed = name or type(self).__name__, 0

    async def reward_at_limit(self) -> float:
        """The rest of the reward of a conversation that reached a limit: nothing."""
        return 0.0

    def end(self) -> None:
        """Let go of what the conversation holds."""


def name_of(environment: Any) -> str:
    """The name of the user's class."""
    return environment.name if isinstance(environment, Adapter) else type(environment).__name__


def checked_turn(turn: Any, name: str) -> Turn:
    """What a method returned, if it is a turn, as plain data.

    Raises:
        RunError: it is none; the message begins with the name of the method.
    """
    if not isinstance(turn, Turn):
        expected = "expected Turn(observation, reward, done, correct)"
        raise RunError(f"{name} returned {shown(turn)}; {expected}")
    reward, right = checked_reward(turn.reward, name), turn.correct
    if right is not None and not _is_bool(right):
        raise RunError(f"{name} returned correct={shown(right)}; expected True, False or None")
    if not _is_bool(turn.done):
        raise RunError(f"{name} returned done={shown(turn.done)}; expected True or False")
    heard: Any = turn.observation
    if not isinstance(heard, str):
        heard = checked_messages(heard, f"{name} returned the observation", "a text, or ")
    elif heard:
        heard = [{"role": "user", "content": heard}]
    right = None if right is None else bool(right)
    restart = checked_messages(turn.restart, f"{name} returned restart with", "")
    calls = turn.calls if isinstance(turn.calls, Sequence) else [turn.calls]
    calls = [_checked_call(call, name) for call in calls]
    if (restart and (heard or turn.done or calls)) or (turn.done and calls):
        raise RunError(
            f"{name} returned Turn(restart=...) or Turn(calls=...) with what cannot be beside it; "
            "expected restart without observation, done and calls, and calls without done"
        )
    return Turn(heard or [], reward, bool(turn.done), right, tuple(turn.uses), restart, calls)


def _checked_call(call: Any, name: str) -> Call:
    """A call of a sub-agent, whose messages are plain data.

    Raises:
        RunError: it is none, it has no messages, or a tool is no function.
    """
    tools = call.tools if isinstance(call, Call) else None
    functions = isinstance(tools, Sequence) and all(map(inspect.isroutine, tools))
    if not isinstance(call, Call) or not call.messages or not functions:
        expected = "expected Call(messages, tools=[functions])"
        raise RunError(f"{name} returned the call {shown(call)}; {expected}")
    return Call(checked_messages(call.messages, f"{name} returned a call with", ""), call.tools)


def checked_opening(said: Any, name: str) -> list[Message] | None:
    """The messages with which an environment begins; None = the prompt of the problem as it is.

    Raises:
        RunError: there is something else; the message begins with the name of the method.
    """
    if said == []:
        raise RunError(f"{name} returned no message; expected None, or some messages")
    return None if said is None else checked_messages(said, f"{name} returned")


def checked_reward(reward: Any, name: str) -> float:
    """What a method returned, as a finite number.

    Raises:
        RunError: it is none; the message begins with the name of the method.
    """
    try:
        if not isinstance(reward, bool | str) and math.isfinite(reward):
            return float(reward)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):
        pass
    raise RunError(f"{name} returned the reward {shown(reward)}; expected a finite number")


def checked_messages(value: Any, what: str, other: str = "None, or ") -> list[Message]:
    """Messages, each with a role and a content that is text, as plain data.

    Raises:
        RunError: there is something else, which is no `other` either.
    """
    whole = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    messages: list[Message] = []
    for message in value if whole else [value]:
        fields = dict(message) if whole and isinstance(message, Mapping) else {}
        named = isinstance(fields.get("content"), str) and isinstance(fields.get("role"), str)
        plain = _as_data(fields) if named else None
        if plain is None:
            raise RunError(
                f"{what} {shown(message)}; expected {other}a list of messages of plain data, such "
                'as {"role": "user", "content": "..."}'
            )
        messages.append(plain)
    return messages


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # also that of numpy


def _as_data(value: Any) -> Any:
    """The value as JSON has it; None if it is no JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return None


def limited_text(text: str, most: int) -> str:
    """The beginning and the end of a text, as valid Unicode; a mark says what is left out."""
    if (left := len(text) - most) > 0:
        half, note = most // 2, f"\n[{left:,} characters were left out]\n"
        text = text[: most - half] + note + text[len(text) - half :]
    return text.encode("utf-8", "replace").decode()


_THREADS = DaemonThreads()


async def called(function: Callable[[], Any], name: str, deadline: float, on: str = "") -> Any:
    """What a function of the user's returns, or what comes of the awaitable that it returns.

    The function runs in a thread, as long as it takes. Its awaitable runs on this event loop.

    Args:
        function: the user's.
        name: of the function, for the message.
        deadline: of the awaitable, in seconds.
        on: what it is called for, such as " on problem '3'".

    Raises:
        NoReply: it raised an exception, or the awaitable is late.
    """

    def attempt() -> tuple[Any, BaseException | None]:
        try:
            return function(), None
        except BaseException as error:  # a future cannot hold a StopIteration
            return None, error

    limit = asyncio.timeout(deadline)
    try:
        value, error = await asyncio.wrap_future(_THREADS.submit(attempt))
        if error is not None:
            raise error
        if inspect.isawaitable(value):
            async with limit:
                value = await value
        return value
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the run ends
            raise
        if limit.expired():
            raise NoReply(Failure.TIMEOUT, f"{name} {late_text(deadline, on)}") from error
        what = f"{type(error).__name__}: {shown(error, str)}{place_of_error(error)}"
        raise NoReply("error", f"{name} failed{on}: {what}") from error


def late_text(deadline: float, on: str) -> str:
    """What a call did that reached its deadline."""
    return f"did not return within {deadline:g} seconds{on}. environment.deadline sets this limit"


async def asked(
    environment: Any, method: str, *arguments: Any, deadline: float, on: str = ""
) -> Any:
    """What a method of an environment returns; the other arguments and errors are of `called`."""
    function = partial(getattr(environment, method), *arguments)
    if isinstance(environment, Adapter):  # each call of the user's in it is one of `called`
        return await function()
    return await called(function, f"{name_of(environment)}.{method}", deadline, on)
