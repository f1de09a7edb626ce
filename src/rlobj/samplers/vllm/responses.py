"""What both vLLM samplers do: build requests and read responses."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers import types as samplers
from rlobj.samplers.response import Response, packed
from rlobj.samplers.types import Done, Feed, Mapped, Request, SamplingSettings

SCORING: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
"""vLLM's sampling parameters for a request that scores its prompt."""
_MIN_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this value, except 0."""
_ENOUGH = 64
"""Tokens after which most log-probabilities being NaN is no accident."""


EngineRequest = tuple[Sequence[int], dict[str, Any]]
"""A prompt and vLLM's sampling parameters."""


@dataclass(frozen=True)
class Completion:
    """A response as vLLM gives it."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str


def engine_seed(seed: int) -> int:
    """Derive vLLM's seed for a prompt: 62 bits, of which the lowest 15 are 0.

    vLLM draws response i of a prompt with seed s + i. With close seeds, two prompts would use the
    same random numbers. Different seeds of this function differ by at least 2^15.
    """
    return samplers.derive_seed("vllm", seed) & ~0x7FFF


def check_prompts(
    prompts: Sequence[Sequence[int]], settings: SamplingSettings, context: int, vocabulary: int
) -> None:
    """Refuse prompts and settings that vLLM would refuse or silently change.

    Args:
        prompts: token ids.
        settings: settings of the call.
        context: largest number of tokens in prompt and response together.
        vocabulary: V, number of tokens of the model.

    Raises:
        ConfigError: a prompt has no tokens, has tokens outside the vocabulary, or is too long with
            `max_tokens`; or vLLM would change the temperature.
    """
    if 0 < settings.temperature < _MIN_TEMPERATURE:
        raise ConfigError(
            f"sampling.temperature={settings.temperature:g}: vLLM would raise it to "
            f"{_MIN_TEMPERATURE}. Set 0 (greedy) or at least {_MIN_TEMPERATURE}."
        )
    samplers.check_prompts(prompts, settings.max_tokens, context, "vLLM engine (max_model_len)")
    for index, prompt in enumerate(prompts):
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ConfigError(
                f"Prompt {index} has a token outside the model's vocabulary of {vocabulary}: the "
                "tokenizer belongs to another model."
            )


def request_fields(
    settings: SamplingSettings, count: int, seed: int, eos: Sequence[int]
) -> dict[str, Any]:
    """Return vLLM's sampling parameters for one prompt; Python and HTTP use the same names.

    Stop strings are searched in the text with special tokens, as in TransformersSampler, and stay
    in the response. Otherwise only a token of `eos` ends a response. With temperature 0 vLLM
    accepts only n = 1.
    """
    return {
        "n": count if settings.temperature > 0 else 1,
        "seed": engine_seed(seed),
        **settings.model_dump(),
        "stop": list(settings.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(eos),
        "ignore_eos": True,
        "skip_special_tokens": False,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logprobs": 0,
    }


@dataclass
class Collected:
    """The samples of one call, converted as vLLM's responses arrive.

    Args:
        prompts: token ids.
        count: samples for each prompt.
        settings: with temperature 0, the responses of a prompt are one.
        tokenizer: of the model.
        version: of the engine's weights.
        done: called with a prompt's index and samples.
    """

    prompts: Sequence[Sequence[int]]
    count: int
    settings: SamplingSettings
    tokenizer: Any
    version: int
    done: Done | None = None
    _groups: dict[int, list[Response]] = field(default_factory=dict)
    _tokens: int = 0
    _unknown: int = 0

    def add(self, index: int, responses: Sequence[Completion]) -> None:
        """Convert the responses to a prompt.

        Raises:
            RunError: a log-probability is infinite, most are NaN, or vLLM aborted a response.
        """
        for response in responses:
            if response.finish not in ("stop", "length"):
                raise RunError(
                    f"vLLM ended a response with '{response.finish}'; expected stop or length. See "
                    "vLLM's log. A server that has ended is started again with: rlobj serve MODEL"
                )
            self._tokens += len(response.logprobs)
            self._unknown += sum(map(math.isnan, response.logprobs))
            if any(map(math.isinf, response.logprobs)):
                raise RunError(samplers.NOT_FINITE, finding="update-too-large")
        if self._tokens >= _ENOUGH:
            self._check()
        ids = [response.token_ids for response in responses]
        texts = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        shared, greedy = packed("i", self.prompts[index]), self.settings.temperature == 0
        drawn = [
            Response(
                prompt=shared,
                tokens=response.token_ids,
                logprobs=[0.0] * len(response.token_ids) if greedy else response.logprobs,
                text=text,
                finish="stop" if response.finish == "stop" else "length",
                weight_version=self.version,
            )
            for response, text in zip(responses, texts, strict=True)
        ]
        self._groups[index] = drawn * (self.count // len(drawn))
        if self.done is not None:
            self.done(index, self._groups[index])

    def all(self) -> list[list[Response]]:
        """The samples of all prompts, in their order.

        Raises:
            RunError: most log-probabilities are NaN.
        """
        self._check()
        return [self._groups[index] for index in range(len(self.prompts))]

    def _check(self) -> None:
        if 2 * self._unknown > self._tokens:  # vLLM has a few where the entropy is nearly 0
            raise RunError(samplers.NOT_FINITE, finding="update-too-large")


class VllmBase(ABC):
    """A call of a vLLM sampler, without the way to the engine.

    Args:
        tokenizer: of the model.
        eos: token ids that end a response.

    Attributes:
        tokenizer: of the model.
        version: of the last `sync`.
    """

    _context: int
    _vocabulary: int

    def __init__(self, tokenizer: Any, eos: Sequence[int]) -> None:
        self.tokenizer, self.version, self._eos = tokenizer, 0, list(eos)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Response]]:
        """Draw `count` responses for each prompt, in the order of the prompts.

        `done` is called when a prompt's responses are finished.

        Raises:
            ConfigError: a prompt has no tokens, or is too long for the engine with `max_tokens`.
            WeightsLost: a server was restarted and has no weights.
            RunError: the model returned logits that are not finite, an engine in this process is
                asleep without weights, or no server answers in time.
        """
        check_prompts(prompts, settings, self._context, self._vocabulary)
        collected = Collected(prompts, count, settings, self.tokenizer, self.version, done)

        def arrived(index: int, answer: Any) -> None:
            collected.add(index, self._responses(answer))

        fields = [request_fields(settings, count, seed, self._eos) for seed in seeds]
        self._send(Feed.whole([*zip(prompts, fields, strict=True)]), arrived)
        return collected.all()

    @property
    def context(self) -> int:
        """The largest number of tokens in prompt and response together."""
        return self._context

    def stream(
        self,
        feed: Feed[Request],
        settings: SamplingSettings,
        done: Callable[[Request, Response], None],
    ) -> None:
        """Draw a response to each request of a feed; new ones join those that are being drawn.

        Raises:
            WeightsLost, RunError: as for `sample`.
        """
        requests: list[Request] = []
        prompts: list[Sequence[int]] = []
        collected = Collected(prompts, 1, settings, self.tokenizer, self.version)
        collected.done = lambda index, samples: done(requests[index], samples[0])

        def engine_request(request: Request) -> EngineRequest:
            limited = settings.model_copy(update={"max_tokens": request.max_tokens})
            check_prompts([request.prompt], limited, self._context, self._vocabulary)
            requests.append(request)
            prompts.append(request.prompt)
            return request.prompt, request_fields(limited, 1, request.seed, self._eos)

        self._send(
            Mapped(feed, engine_request),
            lambda i, answer: collected.add(i, self._responses(answer)),
        )

    @abstractmethod
    def _send(self, feed: Feed[EngineRequest], arrived: Callable[[int, Any], None]) -> None:
        """Have prompts answered; call `arrived` with the number of each one and its answer."""

    @abstractmethod
    def _responses(self, answer: Any) -> list[Completion]:
        """Read the responses to a prompt."""
