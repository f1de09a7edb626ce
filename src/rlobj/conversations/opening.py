"""Opening conversations: from settings, and what a caller passes, to `Conversations`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

from rlobj.conversations.calls import CallReader
from rlobj.conversations.driving import Conversations
from rlobj.conversations.environment import Environment, Message, Turn
from rlobj.conversations.methods import ToolEnvironment, made_environment, tool_schemas
from rlobj.conversations.named import NamedEnvironments
from rlobj.conversations.pool import ToolPool
from rlobj.conversations.rendering import Rendering
from rlobj.conversations.settings import EnvironmentSettings, require_known
from rlobj.conversations.verifiers import VerifiersRollouts
from rlobj.data import Chat, Problem
from rlobj.data.scratchpad import MARK
from rlobj.data.tasks import CALL
from rlobj.data.verifiers import is_environment, is_verifiers, load_environment
from rlobj.samplers import Sampler
from rlobj.samplers.response import ToolUse


class Calculator:
    """Computes a sum, difference or product of two whole numbers, and judges the answer after `#`.

    A turn that ends with `;` is a call, all others are answers: the reward is 1 if the text after
    the last `#` is the answer of the problem, else 0. A call that cannot be read is answered with
    `error;`.
    """

    def __init__(self) -> None:
        self.answer = ""

    def reset(self, problem: Any) -> None:
        """Begin with the problem as it is."""
        self.answer = problem.answer

    def step(self, messages: Sequence[Message]) -> Turn:
        """Compute, or judge the answer."""
        text = messages[-1]["content"]
        if not text.endswith(";"):
            right = text.rpartition(MARK)[2] == self.answer
            return Turn(reward=float(right), done=True, correct=right)
        if call := CALL.fullmatch(text):
            a, b = int(call[1]), int(call[3])
            value = {"+": a + b, "-": a - b, "*": a * b}[call[2]]
            return Turn(f"{value};", uses=(ToolUse("calculator"),))
        return Turn("error;", uses=(ToolUse("calculator", "error"),))


ENVIRONMENTS: dict[str, Callable[[], Environment]] = {"calculator": Calculator}
"""The environments in the box, by name."""


@contextmanager
def open_conversations(
    settings: EnvironmentSettings,
    sampler: Sampler,
    tokenizer: Any,
    chat: Chat | None,
    text: Callable[[Problem], str],
    *,
    environment: Callable[[], Any] | None = None,
    tools: Sequence[str | Callable[..., Any]] | None = None,
    context: int | None = None,
) -> Iterator[Conversations | None]:
    """Open what the settings name, and close it afterwards; None if they name nothing.

    Args:
        settings: of the run.
        sampler: draws turns.
        tokenizer: the policy's.
        chat: how prompts go through the chat template; None = they do not.
        text: problem -> the text of its prompt.
        environment: makes one, in place of the one that the settings name.
        tools: in place of those that the settings name.
        context: see `Conversations`.

    Raises:
        ConfigError: no such environment or tool, or the chat template cannot be used.
    """
    tools = settings.tools if tools is None else tools
    if settings.target is None and not tools:
        yield None
        return
    if is_verifiers(settings.target) or is_environment(environment):
        held = environment or load_environment(str(settings.target))
        yield VerifiersRollouts(held, sampler, tokenizer, settings)
        return
    with ExitStack() as stack:
        if settings.target is None:
            pool = stack.enter_context(ToolPool(settings, tools))
            made: Callable[[], Environment] = partial(ToolEnvironment, pool)
            schemas: Sequence[dict[str, Any]] = pool.schemas()
        elif environment is None and settings.target not in ENVIRONMENTS:
            made = stack.enter_context(closing(_named(settings.target, settings, text)))
            schemas = made.schemas
        else:
            environment = environment or ENVIRONMENTS[settings.target]
            made = partial(made_environment, environment, settings, text)
            schemas = tool_schemas(made())  # which also sees that it can be made
        rendering = Rendering(tokenizer, chat, schemas)
        reader = CallReader(rendering, settings.calls) if schemas else None
        conversations = Conversations(sampler, made, rendering, reader, text, settings, context)
        stack.callback(conversations.close)
        yield conversations


def check_named(
    settings: EnvironmentSettings,
    environment: Callable[[], Any] | None = None,
    tools: Sequence[str | Callable[..., Any]] | None = None,
) -> None:
    """Check what settings name before a model is loaded; it imports the environment or the tools.

    Args:
        settings: of the run.
        environment: as in `open_conversations`.
        tools: as in `open_conversations`.

    Raises:
        ConfigError: there is no such environment or tool, or a tool cannot be described.
    """
    if is_verifiers(settings.target):
        load_environment(str(settings.target))
    elif settings.target and settings.target not in ENVIRONMENTS and environment is None:
        _named(settings.target, settings, lambda problem: problem.prompt).close()
    with ToolPool(settings, tools) as pool:
        pool.schemas()


def _named(
    target: str, settings: EnvironmentSettings, text: Callable[[Problem], str]
) -> NamedEnvironments:
    require_known("environment.target", target, ENVIRONMENTS)
    return NamedEnvironments(target, settings, text)
