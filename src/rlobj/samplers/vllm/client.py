"""Sample from servers that were started with `rlobj serve`, on this or other machines."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, RlobjError, RunError
from rlobj.samplers.types import Feed, Mapped
from rlobj.samplers.vllm.auth import SILENCE
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

    The servers are leased to the trainer's run. The primary rank keeps the lease until `close`.

    Args:
        settings: settings of the connection.
        tokenizer: tokenizer of the model.
        eos: token ids that end a response.
        model_config: configuration of the trainer's model, to be compared with the server's.
        primary: this rank sends the weights.
        holder: id and name of the run that takes the lease, with a space between them; none has
            spaces. Default: the first `sync` takes it for this process.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the key is wrong, another run uses the server, it was not started with
            `rlobj serve`, it has a different model, or its vLLM version is not supported.
        RunError: no server answers.
    """

    def __init__(
        self,
        settings: ServerSettings,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos: Sequence[int],
        model_config: Any,
        primary: bool = True,
        holder: str = "",
    ) -> None:
        super().__init__(tokenizer, eos)
        self.settings = settings
        self._primary = primary
        self._fleet = Fleet(settings, model_config, holder if primary else "")
        self._transfer = Transfer(self._fleet, settings)
        abouts = [node.about[0] for node in self._fleet.living]
        self._context = min(about["max_model_len"] for about in abouts)
        self._vocabulary = abouts[0]["shape"]["vocab_size"]
        self.dtype: torch.dtype | None = getattr(torch, abouts[0]["dtype"])
        self._expected = max(
            self._fleet.each(self._fleet.living, Connection.version).values(), default=-1
        )
        self._closed = threading.Event()
        if primary:
            threading.Thread(target=self._renew, name="lease", daemon=True).start()

    def require_model(self, source: str) -> None:
        """Check that the server samples from this model with its original weights.

        Raises:
            ConfigError: the server has another model, or a trainer has sent weights to it.
        """
        for node in self._fleet.living:
            models = node.get("/v1/models")["data"]
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

    def _send(self, feed: Feed[EngineRequest], arrived: Callable[[int, Any], None]) -> None:
        def body(question: EngineRequest) -> dict[str, Any]:
            return {"prompt": list(question[0]), "return_token_ids": True, **question[1]}

        self._fleet.complete(Mapped(feed, body), arrived, self._expected)

    def _responses(self, answer: Any) -> list[Completion]:
        return [_response(choice) for choice in sorted(answer["choices"], key=lambda c: c["index"])]

    def _scores(self, answer: Any, start: int, tokens: Sequence[int]) -> list[float]:
        entries = zip(tokens, answer["choices"][0]["prompt_logprobs"][start:], strict=True)
        return [entry[str(token)]["logprob"] for token, entry in entries]

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load new weights, and mark later samples with their version.

        The primary rank sends the weights; the others do not wait for it, so all ranks should agree
        that it succeeded before they sample.

        Raises:
            WeightsLost: the server was restarted meanwhile.
            RunError: no server answers in time, or one did not load the weights.
        """
        if self._primary:
            self._transfer.push(weights, version)
        else:
            self._fleet.living = []  # it asks before it samples
        self.version = self._expected = version

    def received(self) -> Received:
        """Ask the servers' workers for the version and the digests of their weights.

        Ranks that are not the primary leave the question to it.

        Raises:
            WeightsLost: the server was restarted and has no weights.
            RunError: workers have different weights.
        """
        if not self._primary:
            return Received(self._expected, None)
        answers_of = self._ask("rlobj_received")
        versions = {node: workers[0]["version"] for node, workers in answers_of.items()}
        self._fleet.living = [node for node in versions if versions[node] >= min(self._expected, 0)]
        if not self._fleet.living:
            raise self._fleet.lost(versions)
        answers = [answer for node in self._fleet.living for answer in answers_of[node]]
        if any(answer != answers[0] for answer in answers):
            urls = ", ".join(node.url for node in self._fleet.living)
            raise RunError(
                f"workers of the server at {urls} have different weights. Restart the server, then "
                "resume the run."
            )
        return Received.of_worker(answers[0])

    def live(self, part: int | None = None) -> Live:
        """Read the weights, or a part, that the workers of a server compute with.

        All servers have the same.

        Raises:
            WeightsLost: the server ended.
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
        fleet.living = fleet.living or fleet.holding(self._expected)
        answers = fleet.each(fleet.living, lambda node: node.call(method, *arguments, long=True))
        if not answers:
            raise fleet.lost()
        return answers

    def sleep(self) -> None:
        """Do nothing: a server uses its own memory."""

    def close(self) -> None:
        """End the lease. The servers continue to run."""
        self._closed.set()
        for node in self._fleet.living if self._primary else ():
            node.release()

    def _renew(self) -> None:
        """Renew the lease until the end, also while no request is made."""
        while not self._closed.wait(SILENCE / 4):
            for node in list(self._fleet.living):
                with contextlib.suppress(RlobjError):
                    node.get("/health")


def _response(choice: Any) -> Completion:
    logprobs = choice["logprobs"] or {"token_logprobs": []}
    values = logprobs["token_logprobs"]
    values = [math.nan if value is None else value for value in values]  # JSON has no NaN
    return Completion(choice["token_ids"], values, choice["finish_reason"])
