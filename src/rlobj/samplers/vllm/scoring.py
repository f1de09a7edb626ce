"""Log-probabilities of given tokens from a server, such as a teacher's.

The server's weights are used as they are.
"""

import math
from collections.abc import Sequence
from itertools import compress, repeat, zip_longest
from typing import Any, NamedTuple

from rlobj.base.errors import ConfigError, RunError, Setting
from rlobj.base.interleaved import own, whole
from rlobj.objectives.tokens import MAX_LOGPROB
from rlobj.samplers.types import Feed
from rlobj.samplers.vllm.connection import HEALTH, Connection, ServerGone
from rlobj.samplers.vllm.responses import SCORING
from rlobj.samplers.vllm.settings import ServerSettings

_TRIES = 5
"""Attempts to score sequences with a server that answers, and is gone before it has scored them."""
_MINUS_INFINITY = -9999.0
"""vLLM's server sends this number for −inf, which JSON does not have."""
_PROBE = (
    "0123456789 -3.14159 1,000,000; it's   \n\n\tdef f(x):\r\n    return [x**2, 'y']  # z "
    r"$\boxed{\frac{1}{2}}$ Straße Привет 你好 العربية 👍🏽"
)
"""A text that different tokenizers split differently."""


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


class ServerScorer:
    """Scores given tokens with the model of a server that `rlobj serve` or `vllm serve` started.

    Args:
        url: address of the server. Its key is found as for `ServerSettings`; RLOBJ_API_KEY in the
            environment is also the key of `vllm serve --api-key`.
        name: of the score.
        temperature: of the rollout; a server scores at temperature 1.
        timeout: seconds to wait for an answer; scoring sequences may take longer.
        patience: seconds to wait for a server that is gone.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the temperature is not 1, the address is wrong, or the server refuses the key.
        RunError: the server does not answer in time.
    """

    def __init__(
        self, url: str, *, name: str, temperature: float, timeout: float = 60, patience: float = 300
    ) -> None:
        if temperature != 1:
            raise ConfigError(
                f"scores.{name}: a server scores at temperature 1. Use a local model "
                f"(scores.{name}.model), or ",
                Setting("sampling.temperature", 1),
            )
        self._score, self._where = name, f"scores.{name}: the server at {url}"
        self._server = Connection(ServerSettings(url=url, timeout=timeout, patience=patience))
        self._model = self._server.wait(self._served)

    def _served(self) -> str:
        """The model that the server has."""
        card = self._server.ask("GET", "/v1/models")["data"][0]
        return card.get("root") or card["id"]

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
            RunError: the server does not answer in time, has another model than before, or gives
                no log-probability (an empty prompt has none for the first token).
        """
        scores: list[list[ServerScore]] = [[] for _ in sequences]

        def body(index: int) -> dict[str, Any]:
            prompt, response = sequences[index]
            ids = [*prompt, *map(int, whole(response))]
            return {"prompt": ids, **SCORING, "prompt_logprobs": top}

        def arrived(index: int, answer: Any) -> None:
            prompt, response = sequences[index]
            scores[index] = self._read(answer, len(prompt), response, top)

        for left in reversed(range(_TRIES)):
            if (model := self._server.wait(self._served)) != self._model:
                raise RunError(f"{self._where} serves {model}, and before {self._model}")
            try:
                asked = Feed.whole(range(len(sequences)))
                self._server.complete(asked, "/v1/completions", body, arrived, HEALTH)
                break
            except ServerGone:
                if not left:
                    raise
        return [score for tokens in scores for score in tokens]

    def check(self, tokenizer: Any, end: int | None = None) -> None:
        """Check that the server has the policy's tokenizer: on one text, with all special tokens.

        The server draws the policy's end token, which must end a response of its model as well.

        Args:
            tokenizer: the policy's, of transformers.
            end: the teacher's token that stands for the policy's end token; None = the same token.

        Raises:
            ConfigError: the tokenizers differ, or the end tokens do.
            RunError: the server does not answer.
        """
        text = "".join(tokenizer.all_special_tokens) + _PROBE
        body = {"prompt": text, "add_special_tokens": False}
        theirs = self._server.ask("POST", "/tokenize", body)["tokens"]
        for pair in zip_longest(tokenizer.encode(text, add_special_tokens=False), theirs):
            if pair[0] != pair[1]:
                raise ConfigError(
                    f"{self._where} has another tokenizer: a token of {text!r} is {pair[0]} here "
                    f"and {pair[1]} there. Use a teacher with the policy's tokenizer"
                )
        if end is not None or (token := tokenizer.eos_token_id) is None:
            return
        drawn = {"max_tokens": 2, "temperature": 0, "allowed_token_ids": [token]}
        answer = self._server.ask("POST", "/v1/completions", {"prompt": [token], **drawn})
        if answer["choices"][0]["finish_reason"] != "stop":
            raise ConfigError(
                f"{self._where} does not end a response with id {token} "
                f"({tokenizer.eos_token!r}), as the policy does. Use ",
                Setting(f"scores.{self._score}.end", "ID"),
                " to name the teacher's end token",
            )

    def _read(
        self, answer: Any, start: int, response: Sequence[int], top: int
    ) -> list[ServerScore]:
        """Read the scores of a response that begins at `start`.

        Raises:
            RunError: there is no log-prob of a token, or one that no distribution has.
        """
        ids, mark = whole(response), own(response)
        entries = (answer["choices"][0].get("prompt_logprobs") or [])[start : start + len(ids)]
        scores: list[ServerScore] = []
        kept = repeat(True) if mark is None else mark
        for token, entry in compress(zip_longest(ids, entries), kept):
            values = {int(key): of["logprob"] for key, of in (entry or {}).items()}
            value = values.get(token)
            if value is None or not _MINUS_INFINITY < value <= MAX_LOGPROB:
                raise RunError(
                    f"{self._where} gives token {token} the log-prob {value}: its weights are "
                    "damaged, or it was started with logprobs_mode=raw_logits"
                )
            likely = sorted(values, key=lambda key: -values[key])[:top]
            logprobs = [max(values[key], _MINUS_INFINITY) for key in likely]
            if not math.fsum(map(math.exp, logprobs)) <= 1.001:
                raise RunError(f"{self._where} gives impossible log-probs: {logprobs[:9]}")
            scores.append(ServerScore(value, likely, logprobs))
        return scores
