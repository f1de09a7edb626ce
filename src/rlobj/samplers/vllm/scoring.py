"""Log-probabilities of given tokens from a server, such as a teacher's.

The server's weights are used as they are.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import compress, repeat, zip_longest
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, Message, RlobjError, RunError, Setting
from rlobj.base.interleaved import own, whole
from rlobj.objectives.tokens import MAX_LOGPROB
from rlobj.samplers.types import Feed, WeightsLost
from rlobj.samplers.vllm.connection import Connection
from rlobj.samplers.vllm.fleet import Fleet
from rlobj.samplers.vllm.responses import SCORING
from rlobj.samplers.vllm.settings import ServerSettings

_TRIES = 5
"""Attempts to score sequences with a server that answers, and is gone before it has scored them."""
_MINUS_INFINITY = -9999.0
"""vLLM's server sends this number for −inf, which JSON does not have."""
_PROBES = (
    "0123456789 -3.14159 1,000,000; it's   \n\n\tdef f(x):\r\n    return [x**2, 'y']  # z",
    r"$\boxed{\frac{1}{2}}$ Straße Привет 你好 العربية 👍🏽",
)
"""Texts that different tokenizers split differently."""


class ServerScore(NamedTuple):
    """The score of a token by a server.

    Attributes:
        logprob: of the token, nats.
        ids: the most likely tokens at its position.
        logprobs: of these, nats.
    """

    logprob: float
    ids: list[int]
    logprobs: list[float]


class Reader(Connection):
    """Connection to a server that this process only reads; it may have any model."""

    pulse = ("GET", "/health", None)
    limit = 0
    """largest number of tokens in prompt and response together (vLLM's max_model_len)"""
    _root = ""

    def _check(self, model_config: Any) -> None:
        card = self.ask("GET", "/v1/models")["data"][0]
        root, self.limit = card.get("root") or card["id"], int(card["max_model_len"])
        if self._root not in ("", root):
            raise ConfigError(f"the server at {self.url} serves {root}, and before {self._root}")
        self._root = root

    def state(self) -> tuple[int, int]:
        """Return (0, 0) after checking that the server has the model that it had before."""
        self.join(None)
        return 0, 0


class ServerScorer:
    """Scores given tokens with the model of a server that `rlobj serve` or `vllm serve` started.

    Args:
        url: address of the server. Its key is found as for `ServerSettings`; RLOBJ_API_KEY in the
            environment is also the key of `vllm serve --api-key`.
        name: of the score; messages begin with `scores.NAME`.
        temperature: of the rollout; a server scores at temperature 1.
        timeout: seconds to wait for an answer; scoring sequences may take longer.
        patience: seconds to wait for a server that is gone.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the temperature is not 1, the address is wrong, or the server refuses the key
            or is another program.
        RunError: the server does not answer in time.
    """

    def __init__(
        self, url: str, *, name: str, temperature: float, timeout: float = 60, patience: float = 300
    ) -> None:
        self.url, self.name = url, name
        if temperature != 1:
            raise ConfigError(
                f"sampling.temperature is {temperature:g}, and a server scores at temperature 1: "
                f"use a local model (scores.{name}.model or scores.{name}.run), or ",
                Setting("sampling.temperature", 1),
            )
        with self._named():
            settings = ServerSettings(url=url, timeout=timeout, patience=patience)
            self._fleet = Fleet(settings, None, Reader)
        self._node: Any = self._fleet.nodes[0]

    @property
    def context(self) -> int:
        """Largest number of tokens in prompt and response together that the server scores."""
        return self._node.limit - 1  # vLLM samples one token after them

    def logprobs(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]]
    ) -> list[list[float]]:
        """As `score`: for each sequence, one log-prob for each token of its response."""
        scores = iter(self.score(sequences))
        return [[next(scores).logprob for _ in response] for _, response in sequences]

    def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], top: int = 0
    ) -> list[ServerScore]:
        """Compute log π(t | tokens before it) of all response tokens, in nats, at temperature 1.

        Args:
            sequences: prompt ids and response ids.
            top: also return this number of most likely tokens at each position.

        Returns:
            The scores of all response tokens, response after response.

        Raises:
            ConfigError: a sequence is too long for the server, or its model does not have a token.
            RunError: the server does not answer in time, or gives no finite log-probability (an
                empty prompt has none for the first token).
        """
        scores: list[list[ServerScore]] = [[] for _ in sequences]

        def body(index: int) -> dict[str, Any]:
            return {"prompt": prompts[index], **SCORING, "prompt_logprobs": top}

        def arrived(index: int, answer: Any) -> None:
            prompt, response = sequences[index]
            scores[index] = _read(answer, len(prompt), response, top)

        with self._named():
            prompts = [[*prompt, *whole(response)] for prompt, response in sequences]
            if (longest := max(map(len, prompts), default=0)) > self.context:
                raise ConfigError(
                    f"a sequence has {longest} tokens, and the server at {self.url} scores "
                    f"at most {self.context} (max_model_len={self._node.limit}, less one). Start "
                    f"it with max_model_len={longest + 1}, or set a smaller sampling.max_tokens"
                )
            for attempt in range(1, _TRIES + 1):
                feed = Feed.whole(range(len(prompts)))
                try:
                    self._fleet.complete(feed, body, arrived, 0)
                    break
                except WeightsLost:
                    if attempt == _TRIES:
                        raise
            self._check_values(sequences, [[s.logprob for s in tokens] for tokens in scores])
        return [score for tokens in scores for score in tokens]

    def check(self, tokenizer: Any, texts: Sequence[str] = (), end: int | None = None) -> None:
        """Check that the server has the policy's tokenizer: the text of each id, and ids of texts.

        Args:
            tokenizer: the policy's, of transformers.
            texts: texts to compare besides the built-in ones, such as prompts.
            end: the teacher's token that stands for the policy's end token; None = the same token,
                which must end a response of the server's model.

        Raises:
            ConfigError: the tokenizers differ, or the end token does.
            RunError: the server does not answer.
        """
        with self._named():
            self._compare(tokenizer, 0, 1 + max(tokenizer.get_vocab().values()))
            for text in ("".join(tokenizer.all_special_tokens), *_PROBES, *texts):
                body = {"prompt": text, "add_special_tokens": False}
                ours = tokenizer.encode(text, add_special_tokens=False)
                for pair in zip_longest(ours, self._asked("/tokenize", body)["tokens"]):
                    self._refuse(f"a token of {text!r}", *pair)
            if end is None and tokenizer.eos_token_id is not None:
                self._check_end(tokenizer.eos_token_id, tokenizer.eos_token)

    def _compare(self, tokenizer: Any, low: int, high: int) -> None:
        """Compare the texts of the ids in [low, high); if they differ, find the first by halves."""
        ids, middle = list(range(low, high)), (low + high) // 2
        pair = tokenizer.decode(ids), self._asked("/detokenize", {"tokens": ids})["prompt"]
        if len(ids) == 1:
            self._refuse(f"id {low}", *pair)
        elif pair[0] != pair[1]:
            self._compare(tokenizer, low, middle)
            self._compare(tokenizer, middle, high)

    def _asked(self, path: str, body: dict[str, Any]) -> Any:
        return self._node.ask("POST", path, body, long=True)

    def _refuse(self, what: str, here: Any, there: Any) -> None:
        if here != there:
            raise ConfigError(
                f"the tokenizer of the server at {self.url} is not the policy's: {what} is "
                f"{here!r} here and {there!r} there. Use a teacher with the policy's tokenizer"
            )

    def _check_end(self, token: int, text: str) -> None:
        """Have the server draw the policy's end token, and see whether that ends the response."""
        drawn = {"max_tokens": 2, "temperature": 0, "allowed_token_ids": [token]}
        (choice,) = self._asked("/v1/completions", {"prompt": [token], **drawn})["choices"]
        if choice["finish_reason"] != "stop":
            raise ConfigError(
                f"id {token} ({text!r}) ends a response of the policy, but none of the server at "
                f"{self.url}. Use ",
                Setting(f"scores.{self.name}.end", "ID"),
                ": the id of the teacher's end token, which then stands for the policy's",
            )

    def _check_values(self, sequences: Sequence[Any], logprobs: Sequence[Sequence[float]]) -> None:
        wrong = [
            f"{value:g} for token {place} of response {index} (id {sequences[index][1][place]})"
            for index, values in enumerate(logprobs)
            for place, value in enumerate(values)
            if not -math.inf < value <= MAX_LOGPROB
        ]
        if wrong:
            raise RunError(
                f"{len(wrong)} of {sum(map(len, logprobs))} log-probs of the server at "
                f"{self.url} are not finite or above 0, first {wrong[0]}. Its weights are "
                "damaged, or (above 0) it was started with logprobs_mode=raw_logits"
            )

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Begin the messages of errors with the name of the score.

        Answers that vLLM does not give are errors, too, because the server sent them.
        """
        try:
            yield
        except RlobjError as error:
            error.message = Message(f"scores.{self.name}: ", error)
            raise
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise RunError(
                f"scores.{self.name}: the server at {self.url} gave an answer that vLLM does not "
                f"give ({type(error).__name__}: {error}). Use a server of `vllm serve` or `rlobj "
                "serve`"
            ) from error


def _read(answer: Any, start: int, response: Sequence[int], top: int) -> list[ServerScore]:
    """Read the scores of a response that begins at `start`; NaN = there is no log-prob.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError: vLLM answers otherwise.
    """
    ids, mark = whole(response), own(response)
    entries = (answer["choices"][0].get("prompt_logprobs") or [])[start : start + len(ids)]
    scores: list[ServerScore] = []
    for token, entry in compress(zip_longest(ids, entries), repeat(True) if mark is None else mark):
        values = {int(key): _value(of["logprob"]) for key, of in (entry or {}).items()}
        likely = sorted(values, key=lambda key: -values[key])[:top]
        logprobs = [max(values[key], _MINUS_INFINITY) for key in likely]
        if math.fsum(map(math.exp, logprobs)) > 1.001 or any(map(math.isnan, logprobs)):
            raise ValueError(f"probabilities above 1, or none: log-probs {logprobs}"[:200])
        scores.append(ServerScore(values.get(token, math.nan), likely, logprobs))
    return scores


def _value(value: Any) -> float:
    """A log-prob of a server; NaN = there is none."""
    if value is None:
        return math.nan
    return -math.inf if value <= _MINUS_INFINITY else float(value)
