"""Environments made of tools: of functions, or of the methods of an object as TRL takes it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.showing import shown
from rlobj.conversations.box import ToolError
from rlobj.conversations.deadlines import Failed, called, called_now
from rlobj.conversations.environment import Adapter, Environment, Message, Turn, checked_reward
from rlobj.conversations.pool import ToolPool, ToolResult
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem
from rlobj.samplers.response import ToolUse

START_SECONDS = 120.0
"""Limit on the first making of an environment, which may load what all of them share."""
_EXPECTED = (
    "An environment of rlobj has the methods reset(self, problem) and step(self, messages), with "
    "parameters of these names"
)


class ToolEnvironment(Adapter):
    """Calls the tools that the policy asks for; a turn without calls ends the conversation.

    Args:
        pool: where tools are called.
        made: the object of TRL whose methods they are; None = there is none.
    """

    def __init__(self, pool: ToolPool, made: Any = None) -> None:
        super().__init__(made)
        self.pool = pool

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Begin with the problem's prompt as it is."""
        return None

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Answer all calls of the last turn, in their order; they are made at the same time."""
        calls = messages[-1].get("tool_calls") or ()
        if not calls:
            return Turn(done=True)
        return self._answers(calls, await asyncio.gather(*map(self._call, calls)))

    async def _call(self, call: Mapping[str, Any]) -> ToolResult:
        if error := call.get("error"):
            return ToolResult(f"error: {error}", "malformed")
        function = call["function"]
        return await self.pool.call(function["name"], function["arguments"], self.conversation_seed)

    @staticmethod
    def _answers(calls: Sequence[Mapping[str, Any]], results: Sequence[ToolResult]) -> Turn:
        names = [call["function"]["name"] for call in calls]
        answers = list(zip(names, results, strict=True))
        return Turn(
            [{"role": "tool", "name": name, "content": result.text} for name, result in answers],
            uses=tuple(ToolUse(name, result.error, result.seconds) for name, result in answers),
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
        public = [name for name in methods if not name.startswith("_")]
        tools = [name for name in public if name not in ("reset", "get_reward")]
        functions = [_as_in_trl(getattr(made, name)) for name in tools]
        super().__init__(ToolPool(settings.model_copy(update={"tools": ()}), functions), made)
        self._text, self._deadline = text, settings.deadline

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Reset the object with the columns of the problem."""
        text = self._text(problem)
        prompt = [{"role": "user", "content": text}]
        columns = {**problem.extra, "prompt": prompt, "answer": problem.answer}

        def read(said: Any) -> list[Message] | None:
            if said is not None and not isinstance(said, str):
                raise RunError(f"reset returned {shown(said)}; expected None or a text")
            return None if said is None else [{"role": "user", "content": f"{text}{said}"}]

        return await called(lambda: self.made.reset(**columns), self._deadline, read)

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Call the methods that the last turn asks for; without calls, ask for the reward."""
        calls = messages[-1].get("tool_calls") or ()
        if calls:
            return self._answers(calls, [await self._call(call) for call in calls])
        return Turn(reward=await self.reward_at_limit(), done=True)

    async def reward_at_limit(self) -> float:
        """What `get_reward` returns; 0 if there is none."""

        def ask() -> Any:
            reward = getattr(self.made, "get_reward", None)
            return 0.0 if reward is None else reward()

        read = functools.partial(checked_reward, name=f"{type(self.made).__name__}.get_reward")
        try:
            return await called(ask, self._deadline, read)
        except Failed as failed:
            failed.method = "get_reward"
            raise


def adapted(
    factory: Callable[[], Any],
    settings: EnvironmentSettings,
    text: Callable[[Problem], str] = lambda problem: problem.prompt,
) -> Callable[[], Environment]:
    """A factory of environments; one of TRL's objects is adapted by `MethodEnvironment`.

    An object is an environment of ours if `step` has the parameter `messages`, or `reset` has the
    parameter `problem`: TRL's objects may have a tool with the name `step`. So is one whose `reset`
    does not take the columns `prompt` and `answer`.

    Raises:
        ConfigError: what it makes is neither, or its methods cannot be called.
    """

    def read(made: Any) -> bool:
        if _is_ours(made):
            _check_ours(made)
            return True
        try:
            MethodEnvironment(made, settings, text).pool.schemas()
        except ConfigError as error:
            raise ConfigError(f"{error}\n{_EXPECTED}") from error
        return False

    def made() -> Environment:
        return MethodEnvironment(factory(), settings, text)

    try:
        return factory if called_now(factory, START_SECONDS, read) else made
    except Failed as failed:
        why = failed.text or f"it takes more than {START_SECONDS:g} seconds"
        raise ConfigError(
            f"the environment {shown(factory)} cannot be made without arguments: {why}"
        ) from failed


def _is_ours(made: Any) -> bool:
    """Whether an object is meant as an environment of rlobj, and not as one of TRL.

    Raises:
        ConfigError: a method cannot be looked up.
    """
    reset, step = _attribute(made, "reset"), _attribute(made, "step")
    if not callable(reset):
        return False
    named = "problem" in _parameters(reset), callable(step) and "messages" in _parameters(step)
    return (callable(step) and any(named)) or bool(_refusal(reset, prompt=(), answer=""))


def _check_ours(made: Any) -> None:
    """Check that the methods of an environment can be called as rlobj does.

    Raises:
        ConfigError: one of them cannot.
    """
    kind, reset, step = type(made).__name__, _attribute(made, "reset"), _attribute(made, "step")
    if not callable(step):
        names = [name for name, _ in inspect.getmembers(type(made), callable)]
        public = ", ".join(name for name in names if not name.startswith("_"))
        raise ConfigError(
            f"the environment {kind} has no method step(self, messages). Its methods are {public}. "
            "An object of TRL's environment_factory, whose methods are tools, has "
            "reset(self, **columns)"
        )
    wanted = {"reset": ("problem",), "step": ("messages",), "reward_at_limit": ()}
    methods = {"reset": reset, "step": step}
    if inspect.isfunction(inspect.getattr_static(type(made), "reward_at_limit", None)):
        methods["reward_at_limit"] = _attribute(made, "reward_at_limit")
    for name, method in methods.items():
        arguments = wanted[name]
        if why := _refusal(method, *arguments):
            raise ConfigError(
                f"{kind}.{name} cannot be called as {name}({', '.join(arguments)}): {why}. "
                f"{_EXPECTED}"
            )
    if "problem" not in _parameters(reset) and "messages" not in _parameters(step):
        raise ConfigError(
            f"{kind}.reset has no parameter with the name problem, and {kind}.step none with the "
            f"name messages. {_EXPECTED}"
        )
    if _is_fixed(made, "conversation_seed"):
        raise ConfigError(
            f"{kind}.conversation_seed cannot be set, and rlobj sets it before each step. Set "
            "self.conversation_seed = 0 in __init__, or give it another name"
        )


def _attribute(made: Any, name: str) -> Any:
    try:
        return getattr(made, name, None)
    except BaseException as error:
        raise ConfigError(
            f"{type(made).__name__}.{name} cannot be looked up: {type(error).__name__}: "
            f"{shown(error, str)}"
        ) from error


def _signature(method: Callable[..., Any]) -> inspect.Signature | None:
    """The signature of a method; None if it is not known."""
    try:
        return inspect.signature(method)
    except (TypeError, ValueError):  # of C
        return None


def _parameters(method: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a method; none if they are not known."""
    signature = _signature(method)
    return signature.parameters if signature else {}


def _refusal(method: Callable[..., Any], *arguments: Any, **some: Any) -> str:
    """Why a method cannot be called with these arguments, or with `some` among others; "" if it
    can."""
    signature = _signature(method)
    if signature is None:
        return ""
    try:
        signature.bind_partial(**some) if some else signature.bind(*arguments)
    except TypeError as error:
        return str(error)
    return ""


def _is_fixed(made: Any, name: str) -> bool:
    """Whether an object has an attribute that nobody can set."""
    slot = inspect.getattr_static(type(made), name, None)
    if isinstance(slot, property):
        return slot.fset is None
    return slot is not None and not hasattr(made, "__dict__") and not hasattr(slot, "__set__")


@contextlib.contextmanager
def _told_as_in_trl() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ToolError(str({"error": str(error)}), error) from error


def _as_in_trl(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which tells the policy its result and its error as TRL does."""

    async def awaited(result: Awaitable[Any]) -> str:
        with _told_as_in_trl():
            return str(await result)

    @functools.wraps(method)
    def told(**arguments: Any) -> Any:
        with _told_as_in_trl():
            result = method(**arguments)
            return awaited(result) if inspect.isawaitable(result) else str(result)

    return told
