"""Opening conversations: from settings, and what a caller passes, to `Conversations`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from rlobj.base.errors import ConfigError, nearest
from rlobj.base.targets import import_target
from rlobj.conversations.calculator import Calculator
from rlobj.conversations.driving import Conversations
from rlobj.conversations.environment import Environment, Message
from rlobj.conversations.rendering import Rendering
from rlobj.conversations.settings import EnvironmentSettings
from rlobj.data import Chat, Problem
from rlobj.samplers import Sample, Sampler

ENVIRONMENTS: dict[str, Callable[[], Environment]] = {"calculator": Calculator}
"""The environments in the box, by name."""


class Speech:
    """What is said in a conversation: as messages, and as token ids.

    Args:
        rendering: of messages.
        text: problem -> the text of its prompt.
    """

    def __init__(self, rendering: Rendering, text: Callable[[Problem], str]) -> None:
        self._rendering, self._text = rendering, text

    def opening(
        self, problem: Problem, said: Sequence[Message] | None
    ) -> tuple[list[int], list[Message]]:
        """The token ids that the policy reads first, and the messages that they are."""
        messages = [{"role": "user", "content": self._text(problem)}] if said is None else [*said]
        return self._rendering.opening(messages, trusted=said is None), messages

    def spoken(self, sample: Sample) -> Message:
        """The message of a turn of the policy."""
        return {"role": "assistant", "content": sample.text}

    def after(self, messages: Sequence[Message], tokens: Sequence[int]) -> list[int]:
        """The token ids that follow a turn of the policy, which had these tokens."""
        return self._rendering.after(messages, tokens[-1] if len(tokens) else None)


@contextmanager
def open_conversations(
    settings: EnvironmentSettings,
    sampler: Sampler,
    tokenizer: Any,
    chat: Chat | None,
    text: Callable[[Problem], str],
    *,
    given: Callable[[], Any] | None = None,
    functions: Sequence[Callable[..., Any]] = (),
    context: int | None = None,
) -> Iterator[Conversations]:
    """Open what the settings name, and close it afterwards.

    Args:
        settings: of the run.
        sampler: draws turns.
        tokenizer: the policy's.
        chat: how prompts go through the chat template; None = they do not.
        text: problem -> the text of its prompt.
        given: makes an environment, in place of the one that the settings name.
        functions: tools besides those that the settings name.
        context: see `Conversations`.

    Raises:
        ConfigError: no such environment or tool, or the chat template cannot be used.
    """
    made = given or _named(str(settings.target))
    speech = Speech(Rendering(tokenizer, chat), text)
    conversations = Conversations(sampler, made, speech, settings, context)
    with ExitStack() as stack:
        stack.callback(conversations.close)
        yield conversations


def _named(target: str) -> Callable[[], Environment]:
    if target in ENVIRONMENTS:
        return ENVIRONMENTS[target]
    if ":" not in target:
        raise ConfigError(
            f"environment.target is {target!r}.{nearest(target, ENVIRONMENTS)} Or name a class of "
            "yours: package.module:Class or path/to/file.py:Class"
        )
    return import_target(target)
