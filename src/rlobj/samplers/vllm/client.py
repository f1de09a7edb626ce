"""Sample from servers that were started with `rlobj serve`, on this or other machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers.types import Feed
from rlobj.samplers.vllm.connection import Connection
from rlobj.samplers.vllm.fleet import Fleet
from rlobj.samplers.vllm.responses import Completion, EngineRequest, VllmBase
from rlobj.samplers.vllm.settings import ServerSettings
from rlobj.samplers.vllm.transfer import Transfer
from rlobj.samplers.weights import Live, Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class VllmServerSampler(VllmBase):
    """Samples over HTTP. One rank of the trainer sends the weights; all ranks sample.

    Args:
        settings: settings of the connection.
        tokenizer: tokenizer of the model.
        eos: token ids that end a response.
        model_config: configuration of the trainer's model, to be compared with the server's.
        primary: this rank sends the weights.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the key is wrong, the server was not started with `rlobj serve`, it has a
            different model, or its vLLM version is not supported.
        RunError: no server answers.
    """

    same_tensors = False

    def __init__(
        self,
        settings: ServerSettings,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos: Sequence[int],
        model_config: Any,
        primary: bool = True,
    ) -> None:
        super().__init__(tokenizer, eos)
        self.settings = settings
        self._primary = primary
        self._fleet = Fleet(settings, model_config)
        self._transfer = Transfer(self._fleet, settings)
        abouts = [node.about[0] for node in self._fleet.living]
        self._context = min(about["max_model_len"] for about in abouts)
        self._vocabulary = abouts[0]["shape"]["vocab_size"]
        if len({about["dtype"] for about in abouts}) > 1:
            raise ConfigError("the servers have different dtypes; expected one dtype")
        self.dtype: torch.dtype | None = getattr(torch, abouts[0]["dtype"])
        self._expected = max(version for version, _ in self._fleet.living.values())

    def require_model(self, source: str) -> None:
        """Check that the server samples from this model with its original weights.

        Raises:
            ConfigError: the server has another model, or a trainer has sent weights to it.
        """
        for node in self._fleet.living:
            models = node.ask("GET", "/v1/models")["data"]
            served = [model.get("root") or model["id"] for model in models]
            if Path(source).resolve() not in [Path(name).resolve() for name in served]:
                raise ConfigError(
                    f"the server at {node.url} serves {', '.join(served)}, not {source}. Name that "
                    f"model, or start another server: rlobj serve {source}"
                )
            if self._expected >= 0:
                raise ConfigError(
                    f"the server at {node.url} does not have the original weights of {source} any "
                    "more, because a trainer sent it others. Start a new server: "
                    f"rlobj serve {source}"
                )

    def _send(
        self,
        feed: Feed[Any],
        request: Callable[[Any], EngineRequest],
        arrived: Callable[[Any, list[Completion]], None],
    ) -> None:
        def body(item: Any) -> dict[str, Any]:
            prompt, fields = request(item)
            return {"prompt": list(prompt), "return_token_ids": True, **fields}

        def answered(item: Any, answer: Any) -> None:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            arrived(item, list(map(completion, choices)))

        self._fleet.complete(feed, body, answered, self._expected)

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load new weights, and mark later samples with their version.

        The primary rank sends the weights; the others do not wait for it, so all ranks should agree
        that it succeeded before they sample.

        Raises:
            WeightsLost: a server ended meanwhile.
            RunError: no server answers in time, or one did not load the weights.
        """
        if self._primary:
            self._transfer.push(weights, version)
        else:
            self._fleet.living = {}  # it asks before it samples
        self.version = self._expected = version

    def received(self) -> Received:
        """Ask the servers' workers for the version and the digests of their weights.

        Ranks that are not the primary leave the question to it.

        Raises:
            WeightsLost: a server is gone, or was restarted and has no weights.
            RunError: workers have different weights.
        """
        if not self._primary:
            return Received(self._expected, None)
        answers_of = self._ask("rlobj_received")
        empty = [node for node, workers in answers_of.items() if workers[0]["version"] < 0]
        if empty and self._expected >= 0:
            raise self._fleet.lost(empty)
        answers = [answer for workers in answers_of.values() for answer in workers]
        if any(answer != answers[0] for answer in answers):
            urls = ", ".join(node.url for node in answers_of)
            raise RunError(
                f"workers of the server at {urls} have different weights. Restart the server, then "
                "resume the run."
            )
        return Received.of_worker(answers[0])

    def live(self, part: int | None = None) -> Live:
        """Read the weights, or a part, that the workers of a server compute with.

        All servers have the same.

        Raises:
            WeightsLost: a server ended.
            RunError: servers compute with different weights.
        """
        if not self._primary:
            return Live({})
        workers = self._ask("rlobj_live", part)
        weights = {node: Live.of_workers(answers) for node, answers in workers.items()}
        first, *others = weights.values()
        for weights_there in others:
            for name, (_, mine) in first.tensors.items():
                if weights_there.tensors[name][1].unordered != mine.unordered:
                    raise RunError(
                        f"the servers at {', '.join(node.url for node in weights)} compute with "
                        f"different weights: {name}. Restart them, then resume the run."
                    )
        return first

    def _ask(self, method: str, *arguments: Any) -> dict[Connection, list[Any]]:
        """Call a method of all workers of the servers that hold the weights."""
        fleet = self._fleet
        fleet.ask(self._expected)
        return fleet.each(fleet.living, lambda node: node.call(method, *arguments, long=True))

    def sleep(self) -> None:
        """Do nothing: a server uses its own memory."""

    def close(self) -> None:
        """Do nothing: the servers continue to run."""


def completion(choice: Any) -> Completion:
    """Read a response of a server."""
    logprobs = choice["logprobs"] or {"token_logprobs": []}
    values = logprobs["token_logprobs"]
    values = [math.nan if value is None else value for value in values]  # JSON has no NaN
    return Completion(choice["token_ids"], values, choice["finish_reason"])
