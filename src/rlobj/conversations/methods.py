"""Environments made of tools: of functions, or of the methods of an object as TRL takes it."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.showing import shown
from rlobj.conversations import environment
from rlobj.conversations.environment import Adapter, Environment, Message, Turn
from rlobj.conversations.pool import Answer, ToolPool
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Problem
from rlobj.samplers.response import ToolUse


class ToolEnvironment(Adapter):
    """Calls the tools that the policy asks for; a turn without calls ends the conversation.

    Args:
        pool: where tools are called.
        made: the object of TRL whose methods they are; None = there is none.
    """

    def __init__(self, pool: ToolPool, made: Any = None) -> None:
        super().__init__("" if made is None else type(made).__name__)
        self.pool = pool
        self.made: Any = made

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Begin with the problem's prompt as it is."""
        return None

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Answer all calls of the last turn, in their order; they are made at the same time."""
        calls = messages[-1].get("tool_calls") or ()
        if not calls:
            return Turn(done=True)
        return self._turn(await asyncio.gather(*map(self._call, calls)))

    async def _call(self, call: Mapping[str, Any]) -> Answer:
        function = call["function"]
        if error := call.get("error"):
            return f"error: {error}", ToolUse(function["name"], "malformed")
        return await self.pool.call(function["name"], function["arguments"], self.conversation_seed)

    @staticmethod
    def _turn(answers: Sequence[Answer]) -> Turn:
        heard = [{"role": "tool", "name": use.name, "content": text} for text, use in answers]
        return Turn(heard, uses=tuple(use for _, use in answers))


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

    """

    def __init__(
        self,
        made: Any,
        settings: EnvironmentSettings,
        text: Callable[[Problem], str] = lambda problem: problem.prompt,
    ) -> None:
        # `getmembers` of the object itself would evaluate its properties
        names = [name for name, _ in inspect.getmembers(type(made), inspect.isfunction)]
        tools = [n for n in names if n[0] != "_" and n not in ("reset", "get_reward")]
        functions = [getattr(made, name) for name in tools]
        super().__init__(ToolPool(settings, functions, as_in_trl=True), made)
        self._text, self._deadline = text, settings.deadline

    async def reset(self, problem: Problem) -> list[Message] | None:
        """Reset the object with the columns of the problem."""
        text = self._text(problem)
        prompt = [{"role": "user", "content": text}]
        columns = {**problem.extra, "prompt": prompt, "answer": problem.answer}
        reset, name, on = self.made.reset, f"{self.name}.reset", f" on problem {problem.id!r}"
        said = await environment.called(lambda: reset(**columns), name, self._deadline, on)
        if said is not None and not isinstance(said, str):
            raise RunError(f"reset returned {shown(said)}; expected None or a text")
        return None if said is None else [{"role": "user", "content": f"{text}{said}"}]

    async def step(self, messages: Sequence[Message]) -> Turn:
        """Call the methods that the last turn asks for; without calls, ask for the reward."""
        calls = messages[-1].get("tool_calls") or ()
        if calls:
            return self._turn([await self._call(call) for call in calls])
        return Turn(reward=await self.reward_at_limit(), done=True)

    async def reward_at_limit(self) -> float:
        """What `get_reward` returns; 0 if there is none."""
        ask, name = getattr(self.made, "get_reward", None), f"{self.name}.get_reward"
        if ask is None:
            return 0.0
        return environment.checked_reward(await environment.called(ask, name, self._deadline), name)


@dataclass(frozen=True)
class TrlEnvironments:
    """What `from_trl` returns: makes one of TRL's objects for each conversation."""

    factory: Callable[[], Any]


def from_trl(factory: Callable[[], Any]) -> TrlEnvironments:
    """Environments that are written for TRL: `rlobj.train(..., environment=from_trl(Counter))`.

    The public methods of an object are tools; see `MethodEnvironment`.

    Args:
        factory: as TRL's `environment_factory`: makes the object of one conversation.
    """
    return TrlEnvironments(factory)


def made_environment(
    factory: Callable[[], Any] | TrlEnvironments,
    settings: EnvironmentSettings,
    text: Callable[[Problem], str] = lambda problem: problem.prompt,
) -> Environment:
    """The environment of one conversation.

    Raises:
        ConfigError: it lacks a method.
    """
    trl = isinstance(factory, TrlEnvironments)
    made: Any = factory.factory() if trl else factory()
    for method in ("reset",) if trl else ("reset", "step"):
        if not callable(getattr(made, method, None)):
            advice = "" if trl else ". Objects of TRL need rlobj.from_trl(FACTORY)"
            name = type(made).__name__
            raise ConfigError(f"the environment {name} has no method {method}{advice}")
    return MethodEnvironment(made, settings, text) if trl else made


def tool_schemas(of: Environment) -> Sequence[dict[str, Any]]:
    """The schemas of the tools of an environment.

    Raises:
        ConfigError: as `ToolPool.schemas`.
    """
    return of.pool.schemas() if isinstance(of, ToolEnvironment) else ()
