"""Environments that a setting names: the object of each conversation has a process of its own.

    this process  ->  a worker, which has imported the class  ->  a copy of it per conversation

What the user's code prints is not shown.
"""

import asyncio
import resource
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.memory import limit_memory
from rlobj.base.targets import import_target
from rlobj.base.threads import DaemonThreads
from rlobj.conversations import environment
from rlobj.conversations.methods import made_environment, tool_schemas
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem
from rlobj.workers.pool import Pool
from rlobj.workers.worker import Failure, Fork, NoReply

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
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a conversation has a descriptor
        self._settings, self._text = settings, text
        process = f"{__name__}:_EnvironmentProcess"
        self._pool = Pool.importing(target, process, settings=settings)
        try:
            with reported(ConfigError, f"target {target!r}", NoReply):
                first = self()
        except BaseException:
            self.close()
            raise
        self.schemas = first.schemas
        first.end()

    def __call__(self) -> "NamedEnvironment":
        """The environment of a conversation.

        Raises:
            NoReply, ConfigError: it cannot be made.
        """
        with self._pool.worker() as worker:
            fork = worker.fork()
        return NamedEnvironment(fork, self._settings.deadline, self._text)

    def close(self) -> None:
        """End all processes."""
        self._pool.close()


class NamedEnvironment(environment.Adapter):
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
        self.name, self.schemas = self._reply("made")

    async def reset(self, problem: Problem) -> list[environment.Message] | None:
        """Begin a conversation."""
        on = f" on problem {problem.id!r}"
        return await self._asked("reset", problem, text=self._text(problem), on=on)

    async def step(self, messages: Sequence[environment.Message]) -> environment.Turn:
        """Answer a turn of the policy; each call of one of TRL's methods has the deadline."""
        calls = messages[-1].get("tool_calls") or ()
        return await self._asked("step", messages, seed=self.conversation_seed, calls=len(calls))

    async def reward_at_limit(self) -> float:
        """The rest of the reward of a conversation that reached a limit; 0 without the method."""
        return await self._asked("reward_at_limit")

    def end(self) -> None:
        """Delete the object and end its process, without waiting for them."""
        _THREADS.submit(self._ended)

    def _ended(self) -> None:
        with suppress(NoReply):
            self._fork.ask("deleted", (), {}, seconds=self._deadline)
        self._fork.kill()

    async def _asked(self, *question: Any, **call: Any) -> Any:
        return await asyncio.wrap_future(_THREADS.submit(self._reply, *question, **call))

    def _reply(
        self, method: str, *arguments: Any, calls: int = 1, on: str = "", **about: Any
    ) -> Any:
        """What came of a call; the process ends an `async` method itself, a second earlier."""
        seconds = self._deadline * max(1, calls) + 1
        name = f"{self.name}.{method}" if method != "made" else "the environment"
        try:
            about = {"on": on, **about}
            kind, value = self._fork.ask(method, arguments, about, seconds=seconds)
        except NoReply as failed:
            late = failed.reason == Failure.TIMEOUT
            text = environment.late_text(self._deadline, on) if late else f"{failed}{on}"
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

    def answer(self, method: str, arguments: Any, about: Mapping[str, Any]) -> tuple[str, Any]:
        """What a method returned; or why it did not, and a message."""
        handler = {"made": self._made, "deleted": self._deleted}.get(method)
        try:
            work = handler() if handler else self._called(method, arguments, **about)
            return "", self._runner.run(work)
        except NoReply as failed:
            return failed.reason, str(failed)
        except (ConfigError, RunError) as error:
            return type(error).__name__, str(error)

    async def _made(self) -> tuple[str, Sequence[dict[str, Any]]]:
        with suppress(OSError):  # a system without /proc
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit_memory(pages * resource.getpagesize() + (self._settings.memory_mb << 20))
        make = partial(made_environment, self._class, self._settings, lambda _: self._text)
        deadline = self._settings.deadline
        self._environment: Any = await environment.called(make, "the environment", deadline)
        return environment.name_of(self._environment), tool_schemas(self._environment)

    async def _called(
        self, method: str, arguments: Any, on: str, text: str = "", seed: int | None = None
    ) -> Any:
        """What a method of the environment returned, checked."""
        made, self._text = self._environment, text or self._text
        if seed is not None and hasattr(made, "conversation_seed"):
            made.conversation_seed = seed
        if method == "reward_at_limit" and not hasattr(made, method):
            return 0.0
        deadline = self._settings.deadline
        said = await environment.asked(made, method, *arguments, deadline=deadline, on=on)
        name = f"{environment.name_of(made)}.{method}"
        answer = _CHECKS[method](said, name)
        if method == "step" and any(call.tools for call in answer.calls):
            raise RunError(
                f"{name} returned a call with tools, and the environment has a process of its own; "
                "expected calls without tools, or pass the class from Python: environment=CLASS"
            )
        return answer

    async def _deleted(self) -> None:
        del self._environment


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "reset": environment.checked_opening,
    "step": environment.checked_turn,
    "reward_at_limit": environment.checked_reward,
}
"""What makes plain data of what each method returned."""
