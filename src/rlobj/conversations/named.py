"""Environments that a setting names: the object of each conversation has a process of its own.

    this process  ->  a worker, which has imported the class  ->  a copy of it per conversation

What the user's code prints is not shown.
"""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from pickle import PicklingError
from typing import Any

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.memory import limit_memory
from rlobj.base.targets import import_target, trusted_target
from rlobj.base.threads import DaemonThreads
from rlobj.conversations.environment import (
    Adapter,
    Message,
    Turn,
    checked_messages,
    checked_reward,
    checked_turn,
    name_of,
)
from rlobj.conversations.methods import made_environment, tool_schemas
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.conversations.user_code import asked, called, late_text
from rlobj.data import Problem
from rlobj.workers.fork import Fork
from rlobj.workers.pool import Pool
from rlobj.workers.worker import Failure, NoReply

_THREADS = DaemonThreads()
_ERRORS = {error.__name__: error for error in (ConfigError, RunError)}


class NamedEnvironments:
    """Makes the environments of conversations, each in a process of its own.

    Args:
        target: of the class, or of what `from_trl` returned.
        settings: the limits.
        text: problem -> the text of its prompt.

    Attributes:
        schemas: of the tools that the methods of an object of TRL are.

    Raises:
        ConfigError: the target may not be imported, or no environment can be made.
    """

    def __init__(
        self, target: str, settings: EnvironmentSettings, text: Callable[[Problem], str]
    ) -> None:
        trusted_target(target)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a conversation has a descriptor
        self._settings, self._text = settings, text
        arguments = {"target": target, "settings": settings}
        process = f"{__name__}:_EnvironmentProcess"
        self._pool = Pool(1, process, arguments, start_seconds=math.inf)
        try:
            with reported(ConfigError, f"target {target!r}", NoReply):
                first = self()
        except BaseException:
            self.close()
            raise
        self.schemas = first.schemas
        first.end()

    def __call__(self) -> NamedEnvironment:
        """The environment of a conversation.

        Raises:
            NoReply, ConfigError: it cannot be made.
        """
        return NamedEnvironment(Fork(self._pool), self._settings.deadline, self._text)

    def close(self) -> None:
        """End all processes."""
        self._pool.close()


class NamedEnvironment(Adapter):
    """An environment in a process, which is killed when a call reaches its deadline.

    Args:
        fork: the process.
        deadline: of a call, in seconds.
        text: problem -> the text of its prompt.

    Attributes:
        schemas: of its tools.

    Raises:
        NoReply, ConfigError: it cannot be made.
    """

    def __init__(self, fork: Fork, deadline: float, text: Callable[[Problem], str]) -> None:
        super().__init__()
        self._fork, self._deadline, self._text = fork, deadline, text
        self.name, self.limits_texts, self.schemas = self._reply("made")

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Begin a conversation."""
        on = f" on problem {problem.id!r}"
        return await self._asked("reset", problem, self._text(problem), on=on)

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Answer a turn of the policy; each call of one of TRL's methods has the deadline."""
        calls = messages[-1].get("tool_calls") or ()
        return await self._asked("step", messages, self.conversation_seed, calls=len(calls))

    async def reward_at_limit(self) -> float:
        """The rest of the reward of a conversation that reached a limit; 0 without the method."""
        return await self._asked("reward_at_limit")

    def end(self) -> None:
        """Delete the object and end its process, without waiting for them."""
        _THREADS.submit(self._ended)

    def _ended(self) -> None:
        with suppress(NoReply):
            self._fork.ask("deleted", seconds=self._deadline)
        self._fork.kill()

    async def _asked(self, *question: Any, **call: Any) -> Any:
        return await asyncio.wrap_future(_THREADS.submit(self._reply, *question, **call))

    def _reply(self, method: str, *arguments: Any, calls: int = 1, on: str = "") -> Any:
        """What came of a call; the process ends an `async` method itself, a second earlier."""
        seconds = self._deadline * max(1, calls) + 1
        name = f"{self.name}.{method}" if method != "made" else "the environment"
        advice = ". Use columns of numbers, texts and lists, or pass the class itself in Python"
        errors = PicklingError, TypeError, AttributeError
        try:
            with reported(ConfigError, f"{name} cannot get{on}", *errors, advice=advice):
                kind, value = self._fork.ask(method, *arguments, seconds=seconds)
        except NoReply as failed:
            late = failed.reason == Failure.TIMEOUT
            text = late_text(self._deadline, on) if late else f"{failed}{on}"
            raise NoReply(failed.reason, f"{name} {text}") from failed
        if kind in _ERRORS:
            raise _ERRORS[kind](value)
        if kind:
            raise NoReply(kind, value)
        return value


class _EnvironmentProcess:
    """The class, in the worker process; in a copy of it, the environment of one conversation.

    Args:
        target: of the class, or of what `from_trl` returned.
        settings: the limits.
    """

    def __init__(self, target: str, settings: EnvironmentSettings) -> None:
        self._class, self._settings, self._text = import_target(target), settings, ""
        self._runner = asyncio.Runner()

    def answer(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """What a method below returned; or why it did not, and a message."""
        try:
            return "", self._runner.run(getattr(self, f"_{method}")(*arguments))
        except NoReply as failed:
            return failed.reason, str(failed)
        except (ConfigError, RunError) as error:
            return type(error).__name__, str(error)

    async def _made(self) -> tuple[str, bool, Sequence[dict[str, Any]]]:
        self._limit_memory()
        make = partial(made_environment, self._class, self._settings, lambda _: self._text)
        self._environment: Any = await called(make, "the environment", self._settings.deadline)
        schemas = tool_schemas(self._environment)
        return name_of(self._environment), isinstance(self._environment, Adapter), schemas

    def _limit_memory(self) -> None:
        """Set the limit, beside what the import of the class took."""
        with suppress(OSError):  # a system without /proc
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit_memory(pages * resource.getpagesize() + (self._settings.memory_mb << 20))

    async def _reset(self, problem: Problem, text: str) -> list[Message] | None:
        self._text = text
        said = await self._asked("reset", problem, on=f" on problem {problem.id!r}")
        name = f"{name_of(self._environment)}.reset"
        return None if said is None else checked_messages(said, f"{name} returned")

    async def _step(self, messages: Sequence[Message], seed: int) -> Turn:
        if hasattr(self._environment, "conversation_seed"):
            self._environment.conversation_seed = seed
        return checked_turn(
            await self._asked("step", messages), f"{name_of(self._environment)}.step"
        )

    async def _reward_at_limit(self) -> float:
        name = "reward_at_limit"
        if not hasattr(self._environment, name):
            return 0.0
        return checked_reward(await self._asked(name), f"{name_of(self._environment)}.{name}")

    async def _deleted(self) -> None:
        del self._environment

    async def _asked(self, method: str, *arguments: Any, on: str = "") -> Any:
        deadline = self._settings.deadline
        return await asked(self._environment, method, *arguments, deadline=deadline, on=on)
