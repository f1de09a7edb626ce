"""The interface of environments: what they are asked, and what they answer."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlobj.base.errors import RunError
from rlobj.base.targets import shown

Message = dict[str, Any]
"""A message as chat templates read it: `role`, `content`, and perhaps `tool_calls` or `name`."""


@dataclass(frozen=True)
class ToolUse:
    """One call of a tool: what the record keeps of it.

    Attributes:
        name: of the tool.
        error: "" if it returned, else "error" (it raised, or the call was malformed), "timeout",
            "crash" (its process ended) or "flood" (it wrote too much).
        seconds: that it took.
    """

    name: str
    error: str = ""
    seconds: float = 0.0


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
    """

    observation: str | Sequence[Message] = ""
    reward: float = 0.0
    done: bool = False
    correct: bool | None = None
    uses: tuple[ToolUse, ...] = ()


@dataclass(frozen=True)
class TurnRecord:
    """A turn of the policy, and what the environment answered.

    Attributes:
        size: tokens that the policy wrote.
        text: of these tokens, without special tokens.
        observed: token ids that the policy reads next; empty after the last turn.
        observation: their text, without what the chat template adds; "" after the last turn.
        reward: of the turn.
        correct: what the environment says of the whole response.
        uses: the calls of tools.
        end: "" = the conversation went on; else why it ended: "done" or a name in `ENDS`.
    """

    size: int
    text: str
    observed: array[int]
    observation: str = ""
    reward: float = 0.0
    correct: bool | None = None
    uses: tuple[ToolUse, ...] = ()
    end: str = ""


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

    Methods are plain or `async`. If all attributes of an object are plain data (numbers, texts,
    lists, dicts with text keys), a run that was killed restores them. Other objects may define
    `state() -> data` and `restore(data)`. If an object has the attribute `conversation_seed`, it is
    set before each step. A method `reward_at_limit() -> float` returns the rest of the reward of a
    conversation that reached a limit.
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
            messages: the conversation so far. The last one is the policy's: `content` is its text,
                and `tool_calls` are the calls that were found in it, if there are tools.
        """
        ...


def checked_turn(found: Any, name: str) -> Turn:
    """What a method returned, if it is a turn.

    Raises:
        RunError: it is none; the message begins with the name of the method.
    """
    if not isinstance(found, Turn):
        expected = "expected Turn(observation, reward, done, correct)"
        raise RunError(f"{name} returned {shown(found)}; {expected}")
    reward, right, done, uses = found.reward, found.correct, found.done, found.uses
    if isinstance(reward, bool | str) or not _finite(reward):
        raise RunError(f"{name} returned the reward {shown(reward)}; expected a finite number")
    if right is not None and not _is_bool(right):
        raise RunError(f"{name} returned correct={shown(right)}; expected True, False or None")
    if not _is_bool(done):
        raise RunError(f"{name} returned done={shown(done)}; expected True or False")
    if not (isinstance(uses, list | tuple) and all(isinstance(use, ToolUse) for use in uses)):
        raise RunError(f"{name} returned uses={shown(uses)}; expected a tuple of ToolUse")
    heard: Any = found.observation
    if not isinstance(heard, str):
        heard = checked_messages(heard, f"{name} returned the observation", "a text, or ")
    elif heard:
        heard = [{"role": "user", "content": heard}]
    right = None if right is None else bool(right)
    return Turn(heard or [], float(reward), bool(done), right, tuple(uses))


def checked_messages(found: Any, what: str, other: str = "None, or ") -> list[Message]:
    """Messages, each with a role and a content that is text.

    Raises:
        RunError: there is something else, which is no `other` either.
    """
    whole = isinstance(found, Sequence) and not isinstance(found, str | bytes)
    messages: list[Message] = []
    for each in found if whole else [found]:
        given = dict(each) if whole and isinstance(each, Mapping) else {}
        named = isinstance(given.get("content"), str) and isinstance(given.get("role"), str)
        if not (named and _is_data(given)):
            raise RunError(
                f"{what} {shown(each)}; expected {other}a list of messages of plain data, such as "
                '{"role": "user", "content": "..."}'
            )
        messages.append(given)
    return messages


def _is_bool(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # also that of numpy


def _is_data(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except (TypeError, OverflowError):
        return False
