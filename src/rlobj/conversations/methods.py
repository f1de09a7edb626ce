"""Environments made of tools: of functions, or of the methods of an object as TRL takes it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.targets import shown
from rlobj.conversations.box import ToolError
from rlobj.conversations.driving import called
from rlobj.conversations.environment import Environment, Message, ToolUse, Turn
from rlobj.conversations.pool import ToolPool, ToolResult
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem


class ToolEnvironment:
    """Calls the tools that the policy asks for; a turn without calls ends the conversation.

    Args:
        pool: where tools are called.

    Attributes:
        limits_calls: there is a deadline for each call, and none for a step.
        conversation_seed: of the calls.
        made: the object itself, or that of TRL.
    """

    limits_calls = True

    def __init__(self, pool: ToolPool) -> None:
        self.pool, self.conversation_seed = pool, 0
        self.made: Any = self

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Begin with the problem's prompt as it is."""
        return None

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Answer all calls of the last turn, in their order; they are made at the same time."""
        calls = messages[-1].get("tool_calls") or ()
        if not calls:
            return Turn(done=True)
        return self._answers(calls, await asyncio.gather(*map(self._call, calls)))

    def state(self) -> Any:
        """Return an empty state: the tools keep nothing."""
        return {}

    def restore(self, state: Any) -> None:
        """Do nothing."""

    async def _call(self, call: Mapping[str, Any]) -> ToolResult:
        if error := call.get("error"):
            return ToolResult(f"error: {error}", "error")
        function = call["function"]
        return await self.pool.call(function["name"], function["arguments"], self.conversation_seed)

    @staticmethod
    def _answers(calls: Sequence[Mapping[str, Any]], results: Sequence[ToolResult]) -> Turn:
        names = [each["function"]["name"] for each in calls]
        told = list(zip(names, results, strict=True))
        return Turn(
            [{"role": "tool", "name": name, "content": result.text} for name, result in told],
            uses=tuple(ToolUse(name, result.error, result.seconds) for name, result in told),
        )


class MethodEnvironment(ToolEnvironment):
    """An object of TRL's `environment_factory`: its public methods are tools.

    `reset(prompt=[...], answer=..., **columns)` returns None, or a text which is appended to the
    problem's prompt. The reward is what `get_reward()` returns, if there is this method; it is
    called once, at the end. Methods are plain or `async`, and are called one after another. As in
    TRL, the policy reads `str(result)`, or `{'error': '...'}` if a method raised.

    Args:
        made: the object, of one conversation.
        settings: the limits of calls.
        text: problem -> the text of its prompt.

    Raises:
        ConfigError: the object has no method `reset`.
    """

    def __init__(
        self,
        made: Any,
        settings: EnvironmentSettings,
        text: Callable[[Problem], str] = lambda problem: problem.prompt,
    ) -> None:
        # `getmembers` of the object itself would evaluate its properties.
        methods = [name for name, _ in inspect.getmembers(type(made), inspect.isfunction)]
        if "reset" not in methods:
            raise ConfigError(
                f"the environment {shown(made)} has no method reset. Expected the methods "
                "reset(problem) and step(messages), or those of TRL's environment_factory: "
                "reset(**columns), and tools"
            )
        own = [x for x in methods if x not in ("reset", "get_reward") and not x.startswith("_")]
        functions = [_as_in_trl(getattr(made, name)) for name in own]
        super().__init__(ToolPool(settings.model_copy(update={"tools": ()}), functions))
        self.made, self._text, self._deadline = made, text, settings.deadline

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Reset the object with the columns of the problem."""
        text = self._text(problem)
        prompt = [{"role": "user", "content": text}]
        columns = {**problem.extra, "prompt": prompt, "answer": problem.answer}
        said = await called(functools.partial(self.made.reset, **columns), deadline=self._deadline)
        if said is not None and not isinstance(said, str):
            raise RunError(f"reset returned {shown(said)}; expected None or a text")
        return None if said is None else [{"role": "user", "content": text + said}]

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Call the methods that the last turn asks for; without calls, ask for the reward."""
        calls = messages[-1].get("tool_calls") or ()
        if calls:
            return self._answers(calls, [await self._call(each) for each in calls])
        return Turn(reward=await self.reward_at_limit(), done=True)

    async def reward_at_limit(self) -> Any:
        """What `get_reward` returns; 0 if there is none."""
        reward = getattr(self.made, "get_reward", None)
        return 0.0 if reward is None else await called(reward, deadline=self._deadline)

    def state(self) -> Any:
        """The attributes of the object."""
        return dict(vars(self.made))

    def restore(self, state: Any) -> None:
        """Set the attributes of the object."""
        vars(self.made).update(state)


def adapted(
    factory: Callable[[], Any],
    settings: EnvironmentSettings,
    text: Callable[[Problem], str] = lambda problem: problem.prompt,
) -> Callable[[], Environment]:
    """A factory of environments; one of TRL's objects is adapted by `MethodEnvironment`.

    An object is an environment of ours if `step` has the parameter `messages`, or `reset` has the
    parameter `problem`: TRL's objects may have a tool with the name `step`.

    Raises:
        ConfigError: what it makes is neither.
    """
    try:
        made = factory()
    except Exception as error:
        raise ConfigError(
            f"the environment {shown(factory)} cannot be made without arguments: "
            f"{type(error).__name__}: {shown(error, str)}"
        ) from error
    names = {"reset": "problem", "step": "messages"}
    methods: list[Any] = [getattr(made, name, None) for name in names]
    parameters = [inspect.signature(each).parameters for each in methods if callable(each)]
    named = [name in found for name, found in zip(names.values(), parameters, strict=False)]
    if len(parameters) == len(names) and any(named):
        return factory
    try:
        MethodEnvironment(made, settings, text).pool.schemas()
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nAn environment of rlobj has the methods reset(self, problem) and step(self, "
            "messages), with parameters of these names"
        ) from error
    return lambda: MethodEnvironment(factory(), settings, text)


@contextlib.contextmanager
def _told_as_in_trl() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ToolError(str({"error": str(error)})) from error


def _as_in_trl(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which tells the policy its result and its error as TRL does."""

    @functools.wraps(method)
    async def later(**arguments: Any) -> str:
        with _told_as_in_trl():
            return str(await method(**arguments))

    @functools.wraps(method)
    def at_once(**arguments: Any) -> str:
        with _told_as_in_trl():
            return str(method(**arguments))

    return later if inspect.iscoroutinefunction(method) else at_once
