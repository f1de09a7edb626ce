"""Sample from a server that was started with `rlobj serve`, on this or another machine."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rlobj.base.addresses import free_port
from rlobj.base.errors import ConfigError, RunError, Setting
from rlobj.installation import check_version
from rlobj.samplers.types import Feed, SamplingSettings, WeightsLost
from rlobj.samplers.vllm.auth import is_local
from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.connection import NAMING, Connection, ServerGone
from rlobj.samplers.vllm.extension import MEMORY
from rlobj.samplers.vllm.installed import SUPPORTED
from rlobj.samplers.vllm.responses import Arrived, Asked, Completion, VllmBase, request_fields
from rlobj.samplers.vllm.settings import ADAPTER, ServerSettings
from rlobj.samplers.weights import Live, Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNKNOWN = -9999.0
"""vLLM's server sends this number for a log-prob that is NaN or −inf, which JSON does not have."""
_PULSE = "POST", "/collective_rpc", {"method": "rlobj_status"}


class VllmServerSampler(VllmBase):
    """Samples over HTTP. One rank of the trainer sends the weights; all ranks sample.

    Args:
        settings: settings of the connection.
        tokenizer: tokenizer of the model.
        eos: token ids that end a response.
        model_config: configuration of the trainer's model, to be compared with the server's.
        primary: this rank sends the weights.
        lora_rank: of the adapter that `sync` brings; 0 = it brings none.
        recompute_cache: as in `VllmSampler`, after a sync of this rank.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the key is wrong, the server was not started with `rlobj serve`, it has a
            different model, or its vLLM version is not supported.
        RunError: the server does not answer.
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
        lora_rank: int = 0,
        recompute_cache: bool = True,
    ) -> None:
        self._settings, self._primary, self._lora_rank = settings, primary, lora_rank
        self._model = model_config.get_text_config()
        self._server = Connection(settings)
        about = self._server.wait(self._join)[0]
        super().__init__(tokenizer, eos, self._number, recompute_cache=recompute_cache)
        self.context, self._vocabulary = about["max_model_len"], about["shape"]["vocab_size"]
        self.dtype: torch.dtype | None = getattr(torch, about["dtype"])
        self._state: tuple[int, int] | None = self._server.wait(self._status)
        self._expected = self._state[0]
        self._mine, self._run = uuid4().hex, None if self._expected >= 0 else "default"
        self._group: WeightGroup | None = None

    def _join(self) -> list[dict[str, Any]]:
        """What the server's workers say about themselves, after checking that they fit the model.

        Raises:
            ServerGone: the server does not answer.
            ConfigError: it does not fit.
        """
        url = self._server.url
        self._number = self._server.ask("GET", "/version")["version"]
        check_version("vllm", self._number, SUPPORTED, url)
        workers = self._server.call("rlobj_describe", long=False)
        if (mode := workers[0]["logprobs_mode"]) != "processed_logprobs":
            raise ConfigError(f"{url} returns {mode}. Start it with: rlobj serve MODEL")
        if self._lora_rank > workers[0].get("lora_rank", 0):
            raise ConfigError(
                f"{url} has no room for an adapter of rank {self._lora_rank}. Start it with: "
                f"rlobj serve MODEL --lora-rank {self._lora_rank}, or use ",
                Setting("model.lora.sync", "merged"),
            )
        differ = [
            f"{name} is {there} there and {here} here"
            for name, there in workers[0]["shape"].items()
            if None not in (there, here := getattr(self._model, name, None)) and there != here
        ]
        if differ:
            raise ConfigError(
                f"{self._server.where} has another model: {'; '.join(differ)}. Start it with the "
                "trainer's: rlobj serve MODEL, or rlobj serve RUN for the model of a task"
            )
        return workers

    def require_model(self, source: str) -> None:
        """Check that the server samples from this model with its original weights.

        Raises:
            ConfigError: the server has another model, or a trainer has sent weights to it.
        """
        models = self._server.ask("GET", "/v1/models")["data"]
        served = [model.get("root") or model["id"] for model in models]
        where, typed = self._server.where, f"rlobj serve {source}"
        if Path(source).resolve() not in [Path(name).resolve() for name in served]:
            what = f"{where} serves {', '.join(served)}, not {source}"
            raise ConfigError(f"{what}. Start another one: {typed}")
        if self._status()[1]:  # also if they did not load
            raise ConfigError(f"{where} has weights that a trainer sent. Start a new one: {typed}")

    def _send(self, feed: Feed[Any], request: Asked, arrived: Arrived) -> None:
        def body(item: Any) -> dict[str, Any]:
            prompt, fields = request(item)
            fields = {**fields, "detokenize": bool(fields["stop"])}
            body = {"token_ids": list(prompt), "sampling_params": fields}
            if self._lora_rank:
                body["model"] = ADAPTER
            return body if self._recompute else {**body, "cache_salt": str(self.version)}

        def answered(item: Any, answer: Any) -> None:
            choices = sorted(answer["choices"], key=lambda choice: choice["index"])
            if any(choice["finish_reason"] == "abort" for choice in choices):
                raise ServerGone(f"{self._server.where} ended during a response")
            completions = list(map(completion, choices))
            labels = [label for each in completions for label, _ in each.labels]
            if any(_run_of(label) != self._run for label in labels):
                raise self._lost()
            arrived(item, completions)

        self._require_weights()
        self._server.complete(feed, "/inference/v1/generate", body, answered, _PULSE)
        if not self.syncs_in_flight:  # no label shows it
            before, self._state = self._state, self._status()
            if self._state != before:
                raise self._lost()

    def _require_weights(self) -> None:
        """Check that the server holds this run's weights.

        Raises:
            WeightsLost: it does not, or does not answer.
        """
        self._state = self._state or self._status()
        if self._state[0] != self._expected:
            raise self._lost()
        if self._run is None and self.syncs_in_flight:
            self._run = _run_of(self._server.ask("GET", "/weight_info")["weight_version"])

    def _status(self) -> tuple[int, int]:
        """The version of the server's weights, and how often some came."""
        status = self._server.call("rlobj_status", long=False)[0]
        return status["version"], status["loads"]

    def _lost(self) -> WeightsLost:
        self._state = None
        what = "has no weights of this run: it was restarted, or another run uses it"
        return WeightsLost(f"{self._server.where} {what}")

    def endpoint(self, settings: SamplingSettings) -> tuple[str, str, dict[str, Any]]:
        """The server's address, its model's name, and what other clients send beside a prompt.

        Raises:
            WeightsLost: the server has other weights, or does not answer.
        """
        self._state = None
        self._require_weights()
        fields = request_fields(settings, 1, 0, self._eos)
        for name in ("n", "seed", "logprobs", "stop_token_ids"):
            del fields[name]
        model = (
            ADAPTER if self._lora_rank else self._server.ask("GET", "/v1/models")["data"][0]["id"]
        )
        return self._server.url, model, fields

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load new weights, and mark later tokens with their version.

        Responses that are being drawn wait meanwhile, and go on with them. The primary rank sends
        the weights; the others do not wait for it, so all ranks should agree that it succeeded
        before they sample.

        Raises:
            WeightsLost: the server ended meanwhile.
            RunError: the server does not answer in time, or did not load the weights.
        """
        self._state = None  # the other ranks ask before they sample
        if self._primary:
            workers = self._server.wait(self._join)
            transport = self._settings.transport
            local = is_local(urlsplit(self._server.url).hostname)
            if transport == "broadcast" or (transport == "auto" and not local):
                self._broadcast(weights, version, workers)
            else:
                self._send_files(weights, version)
            self._state, self._run = self._status(), self._mine
            if self._lora_rank and self._state[0] == version:
                self._name_adapter()
        elif not self._calls:
            self._run = None  # what the server has when this rank asks
        self.version = self._expected = version

    def _name_adapter(self) -> None:
        """Give the adapter that the workers hold the name by which requests ask for it."""
        if ADAPTER not in [one["id"] for one in self._server.ask("GET", "/v1/models")["data"]]:
            body = {"lora_name": ADAPTER, "lora_path": ADAPTER}  # nothing is read from this path
            self._server.ask("POST", NAMING, body)

    @contextlib.contextmanager
    def _paused(self, version: int) -> Iterator[None]:
        """Pause generation inside the block; at its end, clear the prefix cache and label what
        follows: with the version and this run. If the block fails, nothing is drawn from what
        has arrived: responses in flight end, and new ones wait for the next sync."""
        label, after = ".lost", "/pause?mode=abort"
        self._server.ask("POST", "/pause?mode=keep&clear_cache=false", long=True)
        try:
            yield
            again = f"reset_running_requests={str(self._recompute).lower()}"
            cleared = self._server.ask("POST", f"/reset_prefix_cache?{again}")
            if self._recompute and not (cleared or {}).get("success", True):
                raise RunError("the server did not clear its prefix cache")
            label, after = f"{version}.{self._mine}", "/resume"
        finally:
            if self.syncs_in_flight:
                self._server.ask("POST", "/update_weight_version", {"new_version": label})
            self._server.ask("POST", after)

    def _send_files(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send weights in a folder in shared memory; what a killed trainer left is replaced."""
        folder = MEMORY / f"rlobj-{os.getuid()}-{quote(self._server.url, safe='')}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
            store(weights, folder)
            with self._paused(version):
                self._server.call("rlobj_load_files", str(folder), version)
        except (OSError, SafetensorError) as error:
            advice = Setting("sampling.server.transport", "broadcast")
            raise RunError(f"cannot write weights to {folder}: {error}. Use ", advice) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _broadcast(
        self, weights: Iterable[tuple[str, Tensor]], version: int, workers: list[dict[str, Any]]
    ) -> None:
        """Send weights to a process group of this process and the server's workers."""
        held, self._group = self._group, None  # of no use after a failure
        group = held or self._open(workers)
        try:
            with self._paused(version):
                self._with_server(lambda: group.send(weights), "rlobj_receive", version)
        except RunError as error:
            if held is None:  # the server has not left the group: it would fail again
                raise
            raise WeightsLost("the server ended while it got weights (", error, ")") from error
        self._group = group

    def _open(self, workers: list[dict[str, Any]]) -> WeightGroup:
        """Open a broadcast group with the server's workers."""
        device = torch.device(workers[0]["device"])
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        parts = urlsplit(self._server.url)
        address = self._settings.broadcast_address
        if address is None:  # this machine's in its connection to the server
            server_port = parts.port or (443 if parts.scheme == "https" else 80)
            with socket.create_connection((parts.hostname or "", server_port), 10) as there:
                address = str(there.getsockname()[0])
        port, size, timeout = free_port(""), len(workers) + 1, self._settings.timeout
        return self._with_server(
            lambda: WeightGroup(address, port, 0, size, device, timeout),
            *("rlobj_open", address, port, size, timeout),
        )

    def _with_server(self, here: Callable[[], Any], method: str, *arguments: Any) -> Any:
        """Call the workers in a thread while `here` runs in this one; return the result of `here`.

        Raises:
            RunError: the workers' error if they have one, otherwise the error of `here`.
        """
        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(self._server.call, method, *arguments)
            try:
                result = here()
            except RuntimeError as error:
                there.result()
                raise RunError(f"the server cannot receive weights: {error}") from error
            there.result()
        return result

    def received(self) -> Received:
        """Ask the server's workers for the version and the digests of their weights.

        Ranks that are not the primary leave the question to it.

        Raises:
            WeightsLost: the server is gone, or was restarted and has no weights.
            RunError: workers have different weights.
        """
        if not self._primary:
            return Received(self._expected, None)
        self._require_weights()
        first, *others = self._server.call("rlobj_received")
        if first["version"] < 0 <= self._expected:
            raise self._lost()
        if any(other != first for other in others):
            raise RunError(f"workers of {self._server.where} have different weights")
        return Received.of_worker(first)

    def live(self, part: int | None = None) -> Live:
        """Read the weights, or a part, that the server's workers compute with.

        Raises:
            WeightsLost: the server ended, or has other weights.
        """
        if not self._primary:
            return Live({})
        self._require_weights()
        return Live.of_workers(self._server.call("rlobj_live", part))

    def sleep(self) -> None:
        """Do nothing: a server uses its own memory."""

    def close(self) -> None:
        """Do nothing: the server continues to run."""


def store(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write each tensor to a safetensors file; the names of the files ascend."""
    for number, (name, tensor) in enumerate(weights):
        whole = tensor.detach().cpu().contiguous()
        save_file({name: whole}, folder / f"{number:06d}.safetensors")


def _run_of(label: str) -> str:
    """The run whose weights a label names, as in `VERSION.RUN`."""
    return label.rpartition(".")[2]


def completion(choice: Any) -> Completion:
    """Read a response of a server."""
    values = [entry["logprob"] for entry in (choice["logprobs"] or {"content": []})["content"]]
    values = [math.nan if value <= _UNKNOWN else value for value in values]
    spans = choice.get("weight_versions") or ()
    labels = [(span["version"], span["end"] - span["start"]) for span in spans]
    return Completion(choice["token_ids"], values, choice["finish_reason"], labels)
