"""What both vLLM samplers do: build requests and read responses."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers import types as samplers
from rlobj.samplers.response import Response, packed
from rlobj.samplers.types import Done, Feed, Request, SamplingSettings

SCORING: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "prompt_logprobs": 0}
"""vLLM's sampling parameters for a request that scores its prompt."""
LABELS = Version("0.32")
"""The first version of vLLM that says which weights drew a token."""
_MIN_TEMPERATURE = 0.01
"""vLLM raises lower temperatures to this value, except 0."""
_ENOUGH = 64
"""Tokens after which most log-probabilities being NaN is no accident: vLLM has a few where the
entropy is nearly 0."""


@dataclass(frozen=True)
class Completion:
    """A response as vLLM gives it.

    Attributes:
        token_ids: of the response.
        logprobs: of these tokens, nats.
        finish: why it ended, in vLLM's words.
        labels: (label of the weights, number of tokens) of each run of tokens; () = the engine does
            not say it.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    labels: Sequence[tuple[str, int]] = ()


EngineRequest = tuple[Sequence[int], dict[str, Any]]
"""A prompt and vLLM's sampling parameters."""
Asked = Callable[[Any], EngineRequest]
"""What is asked for an item of a feed."""
Arrived = Callable[[Any, list[Completion]], None]
"""Takes an item of a feed and its completions."""


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
        raise ConfigError(f"vLLM needs sampling.temperature=0, or at least {_MIN_TEMPERATURE}.")
    samplers.check_prompts(prompts, settings.max_tokens, context, "vLLM engine (max_model_len)")
    for index, prompt in enumerate(prompts):
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            raise ConfigError(f"Prompt {index} has a token outside the model's {vocabulary}.")


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
        **settings.model_dump(exclude={"rollout_tokens"}),
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


class CompletionReader:
    """Turns the completions of one call into responses.

    Args:
        tokenizer: of the model.
        version: of the engine's weights if it does not say it.
        greedy: log-probs are those of the most likely token, 0.
    """

    def __init__(self, tokenizer: Any, version: int, *, greedy: bool) -> None:
        self._tokenizer, self._version, self._greedy = tokenizer, version, greedy
        self._tokens = self._unknown = 0

    def responses(self, prompt: Sequence[int], completions: Sequence[Completion]) -> list[Response]:
        """The responses to a prompt.

        Raises:
            RunError: a log-probability is infinite, most are NaN, or vLLM aborted a response.
        """
        for completion in completions:
            if completion.finish not in ("stop", "length"):
                raise RunError(f"vLLM ended a response with '{completion.finish}'; see vLLM's log.")
            self._tokens += len(completion.logprobs)
            self._unknown += sum(map(math.isnan, completion.logprobs))
            if any(map(math.isinf, completion.logprobs)):
                raise RunError(samplers.NOT_FINITE, finding="update-too-large")
        if self._tokens >= _ENOUGH and 2 * self._unknown > self._tokens:
            raise RunError(samplers.NOT_FINITE, finding="update-too-large")
        ids = [completion.token_ids for completion in completions]
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        shared = packed("i", prompt)
        return [
            Response(
                prompt=shared,
                tokens=completion.token_ids,
                logprobs=[0.0] * len(completion.token_ids) if self._greedy else completion.logprobs,
                text=text,
                finish="stop" if completion.finish == "stop" else "length",
                weight_version=versions[-1][0] if versions else self._version,
                versions=versions,
            )
            for completion, text in zip(completions, texts, strict=True)
            for versions in [self._versions(completion)]
        ]

    def _versions(self, completion: Completion) -> list[tuple[int, int]]:
        numbers = [(label.partition(".")[0], size) for label, size in completion.labels]
        return [(int(name) if name.isdigit() else self._version, size) for name, size in numbers]


class VllmBase(ABC):
    """A call of a vLLM sampler, without the way to the engine.

    Args:
        tokenizer: of the model.
        eos: token ids that end a response.
        number: version of vLLM.
        recompute_cache: whether keys and values of responses that are being drawn are computed
            again after a sync.

    Attributes:
        tokenizer: of the model.
        version: of the last `sync`.
        context: the largest number of tokens in prompt and response together.
        engine: vLLM's version, for messages.
        syncs_in_flight: whether vLLM says which weights drew each token.
    """

    context: int
    _vocabulary: int

    def __init__(
        self, tokenizer: Any, eos: Sequence[int], number: str, *, recompute_cache: bool
    ) -> None:
        self.tokenizer, self.version, self._eos = tokenizer, 0, list(eos)
        self.syncs_in_flight = Version(number) >= LABELS
        self.engine = f"vLLM {number}"
        self._recompute, self._calls = recompute_cache, 0

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
        check_prompts(prompts, settings, self.context, self._vocabulary)
        reader = CompletionReader(self.tokenizer, self.version, greedy=settings.temperature == 0)
        groups: dict[int, list[Response]] = {}

        def request(index: int) -> EngineRequest:
            return prompts[index], request_fields(settings, count, seeds[index], self._eos)

        def arrived(index: int, completions: list[Completion]) -> None:
            drawn = reader.responses(prompts[index], completions)
            groups[index] = drawn * (count // len(drawn))
            if done is not None:
                done(index, groups[index])

        self._call_engine(Feed.whole(range(len(prompts))), request, arrived)
        return [groups[index] for index in range(len(prompts))]

    def stream(
        self,
        feed: Feed[Request],
        settings: SamplingSettings,
        done: Callable[[Request, Response], None],
    ) -> None:
        """Draw a response to each request of a feed; new ones join those that are being drawn.

        Other methods may be called in another thread meanwhile.

        Raises:
            WeightsLost, RunError: as for `sample`.
        """
        reader = CompletionReader(self.tokenizer, self.version, greedy=settings.temperature == 0)

        def engine_request(request: Request) -> EngineRequest:
            limited = settings.model_copy(update={"max_tokens": request.max_tokens})
            check_prompts([request.prompt], limited, self.context, self._vocabulary)
            return request.prompt, request_fields(limited, 1, request.seed, self._eos)

        def arrived(request: Request, completions: list[Completion]) -> None:
            done(request, reader.responses(request.prompt, completions)[0])

        self._call_engine(feed, engine_request, arrived)

    def _call_engine(self, feed: Feed[Any], request: Asked, arrived: Arrived) -> None:
        self._calls += 1
        try:
            self._send(feed, request, arrived)
        finally:
            self._calls -= 1

    @abstractmethod
    def _send(self, feed: Feed[Any], request: Asked, arrived: Arrived) -> None:
        """Have the requests of a feed's items answered; `arrived` gets each item's completions."""
