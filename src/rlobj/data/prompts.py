"""Turn problems into prompts: text, and the token ids that a model continues."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlobj.base.errors import ConfigError, Setting, nearest
from rlobj.data.problems import Problem

PLAIN_TEMPLATE = "{prompt}"
"""Only the question."""
MATH_TEMPLATE = "{prompt} Please reason step by step, and put your final answer within \\boxed{}."
"""The wording of the JustRL and Qwen evaluations, after one space. Another space or a newline
changes scores."""
DAPO_TEMPLATE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    '{prompt}\n\nRemember to put your answer on its own line after "Answer:".'
)
"""The wording in the questions of DAPO-Math-17k and of DAPO's AIME 2024."""
ANSWER_TEMPLATE = (
    "{prompt}\n\nThink step by step. Then write the final answer alone between <answer> and "
    "</answer>."
)
"""For reasoning-gym, whose answers stand between these tags; the wording is rlobj's."""
_PLACEHOLDER = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


def placeholders(template: str) -> list[str]:
    """Return the names in single braces: `{prompt} in \\boxed{}, {{x}}` gives `["prompt"]`."""
    return [match[2] for match in _PLACEHOLDER.finditer(template) if match[2]]


def format_prompt(template: str, problem: Problem) -> str:
    r"""Insert a problem into a template.

    `{prompt}` is the question and `{name}` another column of the row. `{{name}}` gives the text
    `{name}`. Other braces in the template or in the problem do not change.

    Args:
        template: text with placeholders; a problem's own takes its place.
        problem: the question and the other columns; the answer cannot be inserted.

    Raises:
        ConfigError: a placeholder is not a column of the problem.

    Example:
        >>> problem = Problem("1", "What is 4^{2}?", "16")
        >>> format_prompt("{prompt} Answer with {{digits}}.", problem)
        'What is 4^{2}? Answer with {digits}.'
    """

    def fill(match: re.Match[str]) -> str:
        literal, name = match[1], match[2]
        if literal:
            return "{" + literal + "}"
        if name == "prompt":
            return problem.prompt
        if name in problem.extra:
            return str(problem.extra[name])
        what = f"data.template contains '{{{name}}}', but problem {problem.id} has no such column"
        advice = nearest(name, ["prompt", *problem.extra])
        raise ConfigError(f"{what}; {{prompt}} is the question, {{{{x}}}} writes {{x}}.{advice}")

    return _PLACEHOLDER.sub(fill, problem.template or template)


@dataclass(frozen=True)
class Chat:
    """How prompts go through a chat template.

    Attributes:
        system: text of the system message before the prompt; None = no such message.
        arguments: of the template, such as `{"enable_thinking": False}`.
    """

    system: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def rendered(
        self,
        tokenizer: Any,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        more: bool = True,
    ) -> str:
        """The text of a conversation.

        Args:
            tokenizer: has the chat template.
            messages: `system` precedes them if they have no system message of their own.
            tools: JSON schemas of the tools that the template describes.
            more: end with the start of the assistant's next message.

        Raises:
            ConfigError: the template fails, such as one that refuses a system message.
        """
        if self.system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self.system}, *messages]
        try:
            return str(
                tokenizer.apply_chat_template(
                    [dict(message) for message in messages],
                    [dict(message) for message in tools] or None,
                    tokenize=False,
                    add_generation_prompt=more,
                    **self.arguments,
                )
            )
        except Exception as error:  # a template is a program
            what = f"the tokenizer's chat template fails: {error or type(error).__name__}. Use "
            raise ConfigError(what, Setting("model.chat_template", False)) from error


def encode_prompt(tokenizer: Any, text: str, chat: Chat | None) -> list[int]:
    """Return the token ids of a formatted prompt.

    With `chat`, the text becomes the user's message in the tokenizer's chat template, followed by
    the start of the assistant's message. The template has its own special tokens; none are added.
    Without `chat`, the text follows the BOS token if the tokenizer uses one and the text does not
    start with it. An EOS token is never added, because the model continues the prompt.

    Args:
        tokenizer: tokenizer of the model.
        text: the prompt from `format_prompt`.
        chat: the chat template's settings; None = do not use it.

    Raises:
        ConfigError: the prompt has no tokens.
    """
    if chat:
        text = chat.rendered(tokenizer, [{"role": "user", "content": text}])
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return checked_prompt(ids if chat else with_bos(tokenizer, ids), text)


def with_bos(tokenizer: Any, ids: list[int]) -> list[int]:
    """Token ids after the BOS token, if the tokenizer uses one and they do not start with it."""
    bos = tokenizer.bos_token_id
    if isinstance(bos, int) and ids[:1] != [bos] and _begins_with(bos, tokenizer):
        return [bos, *ids]
    return ids


def checked_prompt(ids: list[int], text: str) -> list[int]:
    """The token ids of a prompt.

    Raises:
        ConfigError: there are none.
    """
    if not ids:
        raise ConfigError(f"The prompt {text!r} has no tokens; a model needs at least one.")
    return ids


@functools.lru_cache(8)
def _begins_with(bos: int, tokenizer: Any) -> bool:
    """Whether a tokenizer adds its BOS token to a text, whatever the text is."""
    return tokenizer("1", add_special_tokens=True)["input_ids"][:1] == [bos]
