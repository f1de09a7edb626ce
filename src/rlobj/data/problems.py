"""Problems, and the shuffled endless stream from which training draws them.

Turn problems into prompts: text, and the token ids that a model continues.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlobj.base.errors import ConfigError, DataError, Setting, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Row = tuple[str, dict[str, Any]]
"""The location of a row, for error messages, and its columns."""


@dataclass(frozen=True)
class Problem:
    """A question with a checkable answer.

    Example:
        >>> Problem(id="1", prompt="What is 2+2?", answer="4").answer
        '4'
    """

    id: str
    """Unique within the data set."""
    prompt: str
    """The question, without a template."""
    answer: str
    """The gold answer alone: no `\\boxed{}`, no worked solution."""
    extra: dict[str, Any] = field(default_factory=dict)
    """The other columns of the row, by name."""
    source: str = ""
    """The label of its source, if there are several."""
    template: str | None = None
    """The text around it, in place of the data set's."""

    @property
    def golds(self) -> Sequence[str]:
        """The gold answers of which any is right: `extra["alternatives"]`, else the answer."""
        return self.extra.get("alternatives") or (self.answer,)


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def decoded(value: Any, where: str) -> Any:
    """Bytes as text, as columns of Parquet files may have them; other values as they are.

    Raises:
        DataError: they are no UTF-8 text.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        return value
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where} has bytes that are not UTF-8 text ({error.reason} at byte {error.start})."
        ) from None


class UniqueProblems:
    """Problems with unique questions and ids; of equal questions, the first is kept.

    Attributes:
        problems: the unique problems, in order.
        repeated: number of problems with the question of an earlier one.
        disagreeing: number of these with another answer.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.repeated = self.disagreeing = 0
        self._answers: dict[str, str] = {}
        self._ids: set[str] = set()

    def add(self, problem: Problem) -> None:
        """Append a problem if its question is new; change its id if that is in use."""
        if problem.prompt in self._answers:
            self.repeated += 1
            self.disagreeing += self._answers[problem.prompt] != problem.answer
            return
        self._answers[problem.prompt] = problem.answer
        if problem.id in self._ids:
            problem = replace(problem, id=f"{problem.id}-{digest(problem.prompt)[:16]}")
        self._ids.add(problem.id)
        self.problems.append(problem)


def known_problems(train: Sequence[Problem], test: Sequence[Problem]) -> str | None:
    """Say how many held-out problems are training problems, up to blanks; None = no problem is."""
    known = {" ".join(problem.prompt.split()) for problem in train}
    found = [each.prompt for each in test if " ".join(each.prompt.split()) in known]
    if not found:
        return None
    return (
        f"{len(found)} of {len(test)} held-out problems are also training problems, such as "
        f"{found[0][:60]!r}, so that accuracy is not that on new problems. Give data.test others"
    )


class ProblemStream:
    """Draws problems forever: each epoch has every problem once, shuffled by (seed, epoch).

    A draw can cross the end of an epoch, so that it may contain a problem twice.

    Args:
        problems: at least one.
        seed: seed of the order.

    Example:
        >>> stream = ProblemStream([Problem("a", "1+1", "2"), Problem("b", "2+2", "4")], seed=0)
        >>> sorted(problem.id for problem in stream.next(2))
        ['a', 'b']
    """

    def __init__(self, problems: Sequence[Problem], *, seed: int = 0) -> None:
        self._problems = list(problems)
        self._seed = seed
        self._fingerprint = digest("\n".join(problem.id for problem in self._problems))[:16]
        self._start(epoch=0)

    def _start(self, epoch: int) -> None:
        self._epoch, self._position = epoch, 0
        self._order = list(range(len(self._problems)))
        random.Random(f"{self._seed}/{epoch}").shuffle(self._order)

    def __len__(self) -> int:
        """Number of problems in an epoch."""
        return len(self._problems)

    @property
    def drawn(self) -> int:
        """Number of problems drawn so far."""
        return self._epoch * len(self) + self._position

    def epochs(self, state: Mapping[str, Any]) -> dict[str, float]:
        """The epochs of each of several sources at the position that `state()` returned."""
        return {}

    def first(self, count: int) -> list[Problem]:
        """Return the first `count` problems of the data set; the stream does not advance."""
        return self._problems[:count]

    def next(self, count: int) -> list[Problem]:
        """Return the next `count` problems."""
        drawn: list[Problem] = []
        while len(drawn) < count:
            if self._position == len(self._order):
                self._start(self._epoch + 1)
            taken = self._order[self._position : self._position + count - len(drawn)]
            self._position += len(taken)
            drawn.extend(self._problems[index] for index in taken)
        return drawn

    def state(self) -> dict[str, Any]:
        """Return the position of the stream, as JSON values."""
        return {
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "problems": self._fingerprint,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from the position that `state()` returned.

        Raises:
            DataError: the state belongs to other problems, or to another order of them.
        """
        if state["problems"] != self._fingerprint or not state["position"] <= len(self):
            raise DataError(
                f"The saved position belongs to another data set: its problem ids have fingerprint "
                f"{state['problems']}, these {len(self._problems)} problems have "
                f"{self._fingerprint}. Resume with the data that the run started with."
            )
        if (state["seed"], state["epoch"]) != (self._seed, self._epoch):
            self._seed = state["seed"]
            self._start(state["epoch"])
        self._position = state["position"]


class MixedStream(ProblemStream):
    """Draws problems of several sources by weight; each source has epochs of its own.

    With weights w_i, W = Σ w_i, and n_i of the N problems drawn so far from source i, the next one
    is of the source with the smallest (n_i + 1)/w_i among those with n_i < (N + 1)·w_i/W. Then
    |n_i - N·w_i/W| < 1 for all N.

    Args:
        problems: at least one of each source.
        weights: of the sources, by label.
        seed: seed of the order in each source.

    Raises:
        DataError: a source has no problem.

    Source:
        The quota method of Balinski and Young, American Mathematical Monthly 82, 1975.

    Example:
        >>> problems = [Problem(id, "?", "1", source=id[0]) for id in ("a1", "b1", "b2")]
        >>> stream = MixedStream(problems, {"a": 2, "b": 1})
        >>> "".join(problem.source for problem in stream.next(6))
        'aabaab'
    """

    def __init__(
        self, problems: Sequence[Problem], weights: Mapping[str, float], *, seed: int = 0
    ) -> None:
        self._problems, self._weights = list(problems), dict(weights)
        own = {name: [each for each in problems if each.source == name] for name in weights}
        if absent := [name for name, part in own.items() if not part]:
            raise DataError(f"data.source: no problem of {', '.join(absent)} is left to train on")
        self._streams = {name: ProblemStream(part, seed=seed) for name, part in own.items()}

    @property
    def drawn(self) -> int:
        return sum(stream.drawn for stream in self._streams.values())

    def first(self, count: int) -> list[Problem]:
        """Return the first problems of each source in turn, `count` together."""
        parts = (stream.first(count) for stream in self._streams.values())
        turns = itertools.zip_longest(*parts)
        return [each for turn in turns for each in turn if each is not None][:count]

    def next(self, count: int) -> list[Problem]:
        weights, whole = self._weights, sum(self._weights.values())
        drawn: list[Problem] = []
        for _ in range(count):
            counts = {name: stream.drawn for name, stream in self._streams.items()}
            after = sum(counts.values()) + 1
            behind = [name for name, n in counts.items() if n * whole < after * weights[name]]
            chosen = min(behind, key=lambda name: (counts[name] + 1) / weights[name])
            drawn += self._streams[chosen].next(1)
        return drawn

    def epochs(self, state: Mapping[str, Any]) -> dict[str, float]:
        places = state["sources"].items()
        return {
            name: own["epoch"] + own["position"] / len(self._streams[name]) for name, own in places
        }

    def state(self) -> dict[str, Any]:
        return {"sources": {name: stream.state() for name, stream in self._streams.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, own in state["sources"].items():
            self._streams[name].restore(own)


def stream_of(
    problems: Sequence[Problem], weights: Mapping[str, float], seed: int
) -> ProblemStream:
    """The stream of one source, or with weights of several."""
    if weights:
        return MixedStream(problems, weights, seed=seed)
    return ProblemStream(problems, seed=seed)


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
            return str(decoded(problem.extra[name], f"problem {problem.id}, column '{name}'"))
        raise ConfigError(
            f"data.template contains '{{{name}}}', but problem {problem.id} has no such column."
            f"{nearest(name, ['prompt', *problem.extra])} "
            f"To write the text itself, use '{{{{{name}}}}}'."
        )

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

    def applied(self, tokenizer: PreTrainedTokenizerBase, text: str) -> str:
        """`rendered` for one message of the user."""
        return self.rendered(tokenizer, [{"role": "user", "content": text}])

    def rendered(
        self,
        tokenizer: PreTrainedTokenizerBase,
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
                    [dict(each) for each in messages],
                    [dict(each) for each in tools] or None,  # pyright: ignore[reportArgumentType]
                    tokenize=False,
                    add_generation_prompt=more,
                    **self.arguments,
                )
            )
        except Exception as error:  # a template is a program
            raise ConfigError(
                f"the tokenizer's chat template fails: {error or type(error).__name__}. Use ",
                Setting("model.chat_template", False),
                ", or check data.system and model.chat_template_kwargs",
            ) from error


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str, chat: Chat | None) -> list[int]:
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
        text = chat.applied(tokenizer, text)
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    return checked_prompt(ids if chat else with_bos(tokenizer, ids), text)


def with_bos(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> list[int]:
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
def _begins_with(bos: int, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer adds its BOS token to a text, whatever the text is."""
    return tokenizer("1", add_special_tokens=True)["input_ids"][:1] == [bos]
