"""Sample from servers that were started with `rlobj serve`, on this or other machines.

Send weights to all servers of a fleet, by files or by broadcast.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, RlobjError, RunError, Setting
from rlobj.base.files import free_port
from rlobj.base.progress import waiting
from rlobj.samplers.types import Feed, Mapped, WeightsLost
from rlobj.samplers.vllm.auth import SILENCE
from rlobj.samplers.vllm.connection import Connection, Fleet, ServerGone
from rlobj.samplers.vllm.extension import WeightGroup
from rlobj.samplers.vllm.responses import Asked, Response, VllmBase
from rlobj.samplers.vllm.settings import ServerSettings
from rlobj.samplers.weights import Live, Received

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_DAY = 86400.0
"""Age in seconds at which a folder of weights is what a killed trainer left."""


class Transfer:
    """Sends weights to the servers of a fleet.

    Args:
        fleet: the servers; `living` are afterwards those that loaded the weights.
        settings: transport, and the address for broadcasts.
    """

    def __init__(self, fleet: Fleet, settings: ServerSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._group: tuple[list[Connection], WeightGroup] | None = None

    def push(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send weights to all servers that answer, by files if all of them can read them.

        Raises:
            WeightsLost: servers ended meanwhile; it may succeed when it is repeated.
            RunError: no server answers in time, or one cannot load the weights.
        """
        fleet = self._fleet
        for node in fleet.nodes:
            node.holder = node.holder or f"{secrets.token_hex(8)} process-{os.getpid()}"
        nodes = fleet.join()
        fleet.living = list(nodes)
        joined = self._group is not None
        try:
            with self._folder() as folder:
                if self._by_file(nodes, folder):
                    _store(weights, folder)
                    with self._paused(nodes):
                        self._call(nodes, "rlobj_load_files", str(folder), version)
                else:
                    self._broadcast(nodes, weights, version)
        except RunError as error:
            if fleet.living == nodes and not joined:  # no server is gone: it would fail again
                raise
            raise WeightsLost("a server ended while it got weights (", error, ")") from error
        if not fleet.living:
            raise fleet.lost()

    def _call(self, nodes: list[Connection], method: str, *arguments: Any) -> list[list[Any]]:
        """Call a method of the servers' workers; leave out servers that are gone."""
        found = self._fleet.each(nodes, lambda node: node.call(method, *arguments, long=True))
        return list(found.values())

    @contextmanager
    def _paused(self, nodes: list[Connection]) -> Iterator[None]:
        """Pause generation inside the block, and clear the prefix caches at its end."""
        each = self._fleet.each
        each(nodes, lambda node: node.post("/pause?mode=wait", long=True))
        try:
            yield
            cleared = each(nodes, lambda node: node.post("/reset_prefix_cache"))
            if not all((answer or {}).get("success", True) for answer in cleared.values()):
                raise RunError(
                    "a server did not clear its prefix cache; responses would mix policies"
                )
        finally:
            each(nodes, lambda node: node.post("/resume"))

    def _by_file(self, nodes: list[Connection], folder: Path) -> bool:
        """Whether the transport is files; "auto" means that every server can read a file here."""
        if self._settings.transport != "auto":
            return self._settings.transport == "file"
        probe = folder / "probe"
        probe.touch()
        answers = self._call(nodes, "rlobj_sees", str(probe))
        return all(each["sees"] for workers in answers for each in workers)

    def _broadcast(
        self, nodes: list[Connection], weights: Iterable[tuple[str, Tensor]], version: int
    ) -> None:
        held, self._group = self._group, None  # of no use after a failure
        group = held[1] if held and held[0] == nodes else self._open(nodes)
        with self._paused(nodes):
            self._with_servers(
                lambda: self._call(nodes, "rlobj_receive", version), lambda: group.send(weights)
            )
        self._group = (nodes, group) if self._fleet.living == nodes else None

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Create an empty folder in shared memory, and delete it afterwards.

        What a killed trainer left is replaced if it was the same run, and deleted after a day.
        """
        shared = Path("/dev/shm")
        base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        name = hashlib.sha256(self._fleet.nodes[0].holder.encode()).hexdigest()[:16]
        folder = base / f"rlobj-{os.getuid()}-{name}"
        for left in base.glob(f"rlobj-{os.getuid()}-*"):
            if left == folder or left.stat().st_mtime < time.time() - _DAY:
                shutil.rmtree(left, ignore_errors=True)
        try:
            folder.mkdir(mode=0o700)
            yield folder
        except OSError as error:
            raise RunError(
                f"cannot write the weights for the server to {folder}: {error}. Free space "
                "there, or use ",
                Setting("sampling.server.transport", "broadcast"),
                ".",
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _open(self, nodes: list[Connection]) -> WeightGroup:
        """Open a broadcast group with the workers of all servers."""
        kind = nodes[0].about[0]["device"]
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigError(
                f"the server at {nodes[0].url} receives broadcasts on its GPU, but the "
                "trainer has no GPU. On one machine, use ",
                Setting("sampling.server.transport", "file"),
                ".",
            )
        device = torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else "cpu"
        address = self._settings.broadcast_address or _own_address(nodes[0].url)
        port = self._settings.broadcast_port or free_port("")
        first, ranks = 1, {}
        for node in nodes:
            ranks[node] = first
            first += len(node.about)
        given = (address, port, first, self._settings.timeout)
        return self._with_servers(
            lambda: self._fleet.each(
                nodes, lambda node: node.call("rlobj_open", *given, ranks[node], long=True)
            ),
            lambda: WeightGroup(address, port, 0, first, torch.device(device), given[3]),
        )

    def _with_servers(self, there: Callable[[], Any], here: Callable[[], Any]) -> Any:
        """Call the servers in a thread while `here` runs in this one; return the result of `here`.

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


def _store(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """Write each tensor to a safetensors file; the names of the files ascend."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    for number, (name, tensor) in enumerate(weights):
        try:
            whole = tensor.detach().cpu().contiguous()
            save_file({name: whole}, folder / f"{number:06d}.safetensors")
        except SafetensorError as error:  # no space
            raise OSError(str(error)) from error


def _own_address(url: str) -> str:
    """Find this machine's address in its connection to the server."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=10) as connection:
            return str(connection.getsockname()[0])
    except OSError as error:
        raise ServerGone(f"the server at {url} cannot be reached ({error})") from error


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
        self.settings = settings
        self.tokenizer = tokenizer
        self.version = 0
        self._primary = primary
        self._eos = list(eos)
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

    def _send(self, feed: Feed[Asked], arrived: Callable[[int, Any], None]) -> None:
        def body(asked: Asked) -> dict[str, Any]:
            return {"prompt": list(asked[0]), "return_token_ids": True, **asked[1]}

        with waiting():  # the servers' patience is the limit
            self._fleet.complete(Mapped(feed, body), arrived, self._expected)

    def _responses(self, answer: Any) -> list[Response]:
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
        found = self._ask("rlobj_received")
        held = {node: workers[0]["version"] for node, workers in found.items()}
        self._fleet.living = [node for node in held if held[node] >= min(self._expected, 0)]
        if not self._fleet.living:
            raise self._fleet.lost(held)
        answers = [answer for node in self._fleet.living for answer in found[node]]
        if any(answer != answers[0] for answer in answers):
            urls = ", ".join(node.url for node in self._fleet.living)
            raise RunError(
                f"workers of the server at {urls} have different weights. Restart the server, then "
                "resume the run."
            )
        return Received.of_worker(answers[0])

    def live(self) -> Live:
        """Read the weights that the workers of a server compute with; all servers have the same.

        Raises:
            WeightsLost: the server ended.
            RunError: servers compute with different weights.
        """
        if not self._primary:
            return Live({})
        found = {node: Live.of_workers(own) for node, own in self._ask("rlobj_live").items()}
        first, *others = found.values()
        for own in others:
            for name, (_, mine) in first.tensors.items():
                if own.tensors[name][1].unordered != mine.unordered:
                    raise RunError(
                        f"the servers at {', '.join(node.url for node in found)} compute with "
                        f"different weights: {name}. Restart them, then resume the run."
                    )
        return first

    def _ask(self, method: str) -> dict[Connection, list[Any]]:
        """Call a method of all workers of the servers that hold the weights."""
        fleet = self._fleet
        fleet.living = fleet.living or fleet.holding(self._expected)
        found = fleet.each(fleet.living, lambda node: node.call(method, long=True))
        if not found:
            raise fleet.lost()
        return found

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


def _response(choice: Any) -> Response:
    logprobs = choice["logprobs"] or {"token_logprobs": []}
    given = [math.nan if x is None else x for x in logprobs["token_logprobs"]]  # JSON has no NaN
    return Response(choice["token_ids"], given, choice["finish_reason"])
