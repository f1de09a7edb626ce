"""Sample from a server that was started with `rlobj serve`, on this or another machine."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.ports import free_port
from rlobj.samplers.types import Done, Sample, SamplingSettings
from rlobj.samplers.vllm import versions
from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.connection import Connection
from rlobj.samplers.vllm.extension import SHAPE
from rlobj.samplers.vllm.responses import Collected, Response, check_prompts, request_fields
from rlobj.samplers.vllm.settings import ServerSettings
from rlobj.samplers.weights import Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FILE_BYTES = 1 << 30
"""Bytes of weights that are collected before a file is written."""


class VllmServerSampler:
    """Samples over HTTP. One rank of the trainer sends the weights; all ranks sample.

    Args:
        settings: settings of the connection.
        tokenizer: tokenizer of the model.
        eos: token ids that end a response.
        model_config: configuration of the trainer's model, to be compared with the server's.
        primary: this rank sends the weights; the other ranks wait for the server to load them.

    Raises:
        MissingExtra: aiohttp is not installed.
        ConfigError: the key is wrong, the server was not started with `rlobj serve`, it has a
            different model, or its vLLM version is not supported.
        RunError: the server does not answer.
    """

    def __init__(
        self,
        settings: ServerSettings,
        tokenizer: PreTrainedTokenizerBase,
        *,
        eos: Sequence[int],
        model_config: Any,
        primary: bool = True,
    ) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.version = 0
        self._primary = primary
        self._eos = list(eos)
        self._server = Connection(settings)
        self._group: WeightGroup | None = None
        versions.check_number(self._server.get("/version")["version"], f"the server {settings.url}")
        workers = self._server.call("rlobj_describe")
        self._workers, self._about = len(workers), workers[0]
        self._check_server(model_config)
        self.dtype: torch.dtype | None = getattr(torch, self._about["dtype"])
        self._expected = self._version()

    def _check_server(self, model_config: Any) -> None:
        about, url = self._about, self.settings.url
        if about["logprobs_mode"] != "processed_logprobs":
            raise ConfigError(
                f"the server at {url} returns {about['logprobs_mode']}, not the log-probs "
                "of the sampled distribution. Start it with: rlobj serve MODEL"
            )
        text = model_config.get_text_config()
        mine = {name: getattr(text, name, None) for name in SHAPE}
        differ = [
            f"{name} is {about['shape'][name]} there and {mine[name]} here"
            for name in SHAPE
            if None not in (mine[name], about["shape"][name]) and mine[name] != about["shape"][name]
        ]
        if differ:
            raise ConfigError(
                f"the server at {url} has a different model from the trainer: {'; '.join(differ)}. "
                "Start it with the trainer's model: rlobj serve MODEL"
            )

    def require_model(self, source: str) -> None:
        """Check that the server samples from this model with its original weights.

        Raises:
            ConfigError: the server has another model, or a trainer has sent weights to it.
        """
        url = self.settings.url
        models = self._server.get("/v1/models")["data"]
        served = [model.get("root") or model["id"] for model in models]
        if Path(source).resolve() not in [Path(name).resolve() for name in served]:
            raise ConfigError(
                f"the server at {url} serves {', '.join(served)}, not {source}. Name that model, "
                f"or start another server: rlobj serve {source}"
            )
        if self._expected >= 0:
            raise ConfigError(
                f"the server at {url} does not have the original weights of {source} any more, "
                f"because a trainer sent it others. Start a new server: rlobj serve {source}"
            )

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        settings: SamplingSettings,
        seeds: Sequence[int],
        done: Done | None = None,
    ) -> list[list[Sample]]:
        """Draw `count` responses per prompt; `done` is called when a prompt's responses arrive.

        Raises:
            ConfigError: a prompt has no tokens, or is too long for the engine with `max_tokens`.
            RunError: the server does not respond, or no longer has the weights sent to it.
        """
        check_prompts(
            prompts, settings, self._about["max_model_len"], self._about["shape"]["vocab_size"]
        )
        bodies = [
            {
                "prompt": list(prompt),
                "return_token_ids": True,
                **request_fields(settings, count, seed, self._eos),
            }
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
        collected = Collected(
            prompts,
            count=count,
            greedy=settings.temperature == 0,
            tokenizer=self.tokenizer,
            version=self.version,
            done=done,
        )

        def arrived(index: int, answer: Any) -> None:
            choices = sorted(answer["choices"], key=lambda each: each["index"])
            collected.add(index, list(map(_response, choices)))

        self._server.complete(bodies, arrived)
        self._check_version()
        return collected.all()

    def sync(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Load new weights, and mark later samples with their version.

        Every rank consumes the whole iterator; only the primary rank sends the weights.

        Raises:
            RunError: the server does not respond, or did not load the weights.
        """
        remaining = iter(weights)
        try:
            if self._primary:
                self._push(remaining, version)
        finally:
            for _ in remaining:  # after an error too: the next tensor may need all ranks
                pass
        if not self._primary:
            self._wait_for(version)
        self.version = self._expected = version

    def received(self) -> Received:
        """Ask the server's workers for the version and the checksums of their weights.

        Raises:
            RunError: the workers have different weights.
        """
        answers = self._server.call("rlobj_received")
        for rank, answer in enumerate(answers):
            if answer != answers[0]:
                raise RunError(
                    f"worker {rank} of the server at {self.settings.url} has different weights "
                    "from worker 0. Restart the server, then resume the run."
                )
        return Received(answers[0]["version"], answers[0]["checksums"])

    def sleep(self) -> None:
        """Do nothing: the server uses its own memory."""

    def close(self) -> None:
        """Leave the broadcast group. The server continues to run."""
        self._group = None

    # Weights.

    def _push(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        if self._transport() == "file":
            with self._folder() as folder:
                _store(weights, folder)
                with self._paused():
                    self._server.call("rlobj_load_files", str(folder), version, long=True)
            return
        group = self._group or self._open()
        self._group = None  # a group cannot be used again after a failure
        with self._paused():
            self._with_server(
                lambda: self._server.call("rlobj_receive", version, long=True),
                lambda: group.send(weights),
            )
        self._group = group

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Pause generation inside the block, and clear the prefix cache at its end."""
        self._server.post("/pause?mode=wait", long=True)
        try:
            yield
            answer = self._server.post("/reset_prefix_cache")
            if answer is not None and not answer.get("success", True):
                raise RunError(
                    "the server did not clear its prefix cache; responses would mix policies"
                )
        finally:
            self._server.post("/resume")

    def _transport(self) -> str:
        """Return the transport. "auto" means files if the server can read a file written here."""
        if self.settings.transport == "auto":
            with self._folder() as folder:
                probe = folder / "probe"
                probe.touch()
                answers = self._server.call("rlobj_sees", str(probe))
            chosen = "file" if all(each["sees"] for each in answers) else "broadcast"
            self.settings = self.settings.model_copy(update={"transport": chosen})
        return self.settings.transport

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Create an empty folder in shared memory, and delete it afterwards.

        Its name depends only on the user and the server, so leftovers of a killed trainer are
        replaced.
        """
        shared = Path("/dev/shm")
        base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        name = hashlib.sha256(self.settings.url.encode()).hexdigest()[:12]
        folder = base / f"rlobj-{os.getuid()}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
            yield folder
        except OSError as error:
            raise RunError(
                f"cannot write the weights for the server to {folder}: {error}. Free space "
                "there, or set sampling.server.transport=broadcast."
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _open(self) -> WeightGroup:
        """Open a broadcast group with the server's workers."""
        kind = self._about["device"]
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                f"the server at {self.settings.url} receives broadcasts on its GPU, but the "
                "trainer has no GPU. On one machine, set sampling.server.transport=file."
            )
        device = torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else "cpu"
        address = self.settings.broadcast_address or _own_address(self.settings.url)
        port = self.settings.broadcast_port or free_port("")
        size, timeout = 1 + self._workers, self.settings.timeout
        return self._with_server(
            lambda: self._server.call("rlobj_open", address, port, size, timeout, long=True),
            lambda: WeightGroup(address, port, 0, size, torch.device(device), timeout),
        )

    def _with_server(self, there: Callable[[], Any], here: Callable[[], Any]) -> Any:
        """Call the server in a thread while `here` runs in this one; return the result of `here`.

        Raises:
            RunError: the server's error if it has one, otherwise the error of `here`.
        """
        with ThreadPoolExecutor(1) as pool:
            remote = pool.submit(there)
            try:
                result = here()
            except RuntimeError as error:
                remote.result()
                raise RunError(
                    f"the server cannot receive weights by broadcast: {error}"
                ) from error
            remote.result()
        return result

    # Versions.

    def _version(self) -> int:
        """Return the version of the workers' weights; -1 if no trainer sent them."""
        return min(status["version"] for status in self._server.call("rlobj_status", long=True))

    def _wait_for(self, version: int) -> None:
        """Wait until the server has loaded this version from the primary rank."""
        patience = 10 * self.settings.timeout
        deadline = time.monotonic() + patience
        while self._version() != version:
            if time.monotonic() > deadline:
                raise RunError(
                    f"the server at {self.settings.url} did not receive weights {version} in "
                    f"{patience:g} s. See the output of the trainer's first process."
                )
            time.sleep(0.05)

    def _check_version(self) -> None:
        held = self._version()
        if held == self._expected:
            return
        reason = "it was restarted" if held < 0 else "another trainer sent weights to it"
        raise RunError(
            f"the server at {self.settings.url} has weights {held}, expected {self._expected}: "
            f"{reason}. Resume the run; it sends its weights first."
        )


def _store(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write weights to safetensors files of about 1 GiB with ascending names."""
    from safetensors.torch import save_file

    held: dict[str, Tensor] = {}
    size = files = 0

    def flush() -> None:
        nonlocal size, files
        save_file(held, folder / f"{files:06d}.safetensors")
        held.clear()
        size, files = 0, files + 1

    for name, tensor in weights:
        held[name] = tensor.detach().to("cpu", copy=True).contiguous()
        size += held[name].nbytes
        if size >= _FILE_BYTES:
            flush()
    if held:
        flush()


def _response(choice: Any) -> Response:
    logprobs = choice["logprobs"] or {"token_logprobs": []}
    given = [math.nan if x is None else x for x in logprobs["token_logprobs"]]  # JSON has no NaN
    return Response(choice["token_ids"], given, choice["finish_reason"])


def _own_address(url: str) -> str:
    """Find this machine's address in its connection to the server."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    with socket.create_connection((parts.hostname or "", port), timeout=10) as connection:
        return str(connection.getsockname()[0])
