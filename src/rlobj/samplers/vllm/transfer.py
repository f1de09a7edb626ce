"""Send weights to all servers of a fleet, by files or by broadcast."""

import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from rlobj.base.errors import ConfigError, RunError, Setting, reported
from rlobj.base.ports import free_port
from rlobj.samplers.types import WeightsLost
from rlobj.samplers.vllm.broadcast import WeightGroup
from rlobj.samplers.vllm.connection import Connection, ServerGone
from rlobj.samplers.vllm.fleet import Fleet, state
from rlobj.samplers.vllm.settings import ServerSettings


class Transfer:
    """Sends weights to the servers of a fleet.

    Args:
        fleet: the servers; `living` are afterwards those that have the weights.
        settings: transport, and the address for broadcasts.
    """

    def __init__(self, fleet: Fleet, settings: ServerSettings) -> None:
        self._fleet = fleet
        self._settings = settings
        self._group: tuple[list[Connection], WeightGroup] | None = None

    def push(self, weights: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Send weights to all servers that answer, by files if all of them can read them.

        Raises:
            WeightsLost: a server ended meanwhile; it may succeed when it is repeated.
            RunError: no server answers in time, or one cannot load the weights.
        """
        nodes, self._fleet.living = self._fleet.join(), {}
        with self._folder() as folder:
            if self._by_file(nodes, folder):
                _store(weights, folder)
                with self._paused(nodes):
                    self._call(nodes, "rlobj_load_files", str(folder), version)
            else:
                self._broadcast(nodes, weights, version)
        self._fleet.living = self._fleet.each(nodes, state)

    def _call(self, nodes: list[Connection], method: str, *arguments: Any) -> list[list[Any]]:
        """Call a method of the servers' workers."""
        answers = self._fleet.each(nodes, lambda node: node.call(method, *arguments, long=True))
        return list(answers.values())

    @contextmanager
    def _paused(self, nodes: list[Connection]) -> Iterator[None]:
        """Pause generation inside the block, and clear the prefix caches at its end."""
        fleet = self._fleet
        fleet.each(nodes, lambda node: node.ask("POST", "/pause?mode=wait", long=True))
        try:
            yield
            cleared = fleet.each(nodes, lambda node: node.ask("POST", "/reset_prefix_cache"))
            if not all((answer or {}).get("success", True) for answer in cleared.values()):
                raise RunError(
                    "a server did not clear its prefix cache; responses would mix policies"
                )
        finally:
            fleet.each(nodes, lambda node: node.ask("POST", "/resume"))

    def _by_file(self, nodes: list[Connection], folder: Path) -> bool:
        """Whether the transport is files; "auto" means that every server can read a file here."""
        if self._settings.transport != "auto":
            return self._settings.transport == "file"
        probe = folder / "probe"
        probe.touch()
        answers = self._call(nodes, "rlobj_sees", str(probe))
        return all(worker["sees"] for workers in answers for worker in workers)

    def _broadcast(
        self, nodes: list[Connection], weights: Iterable[tuple[str, Tensor]], version: int
    ) -> None:
        held, self._group = self._group, None  # of no use after a failure
        group = held[1] if held and held[0] == nodes else self._open(nodes)
        try:
            with self._paused(nodes):
                self._with_servers(
                    lambda: self._call(nodes, "rlobj_receive", version), lambda: group.send(weights)
                )
        except RunError as error:
            if held is None:  # no server has left the group: it would fail again
                raise
            raise WeightsLost("a server ended while it got weights (", error, ")") from error
        self._group = nodes, group

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Create an empty folder in shared memory, and delete it afterwards.

        What a killed trainer of these servers left is replaced.
        """
        shared = Path("/dev/shm")
        base = shared if os.access(shared, os.W_OK) else Path(tempfile.gettempdir())
        name = hashlib.sha256(repr(self._settings.urls).encode()).hexdigest()[:16]
        folder = base / f"rlobj-{os.getuid()}-{name}"
        shutil.rmtree(folder, ignore_errors=True)
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
        timeout = self._settings.timeout

        def join(node: Connection) -> Any:
            return node.call("rlobj_open", address, port, first, timeout, ranks[node], long=True)

        return self._with_servers(
            lambda: self._fleet.each(nodes, join),
            lambda: WeightGroup(address, port, 0, first, torch.device(device), timeout),
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
    with (
        reported(ServerGone, f"the server at {url} cannot be reached", OSError),
        socket.create_connection((parts.hostname or "", port), timeout=10) as connection,
    ):
        return str(connection.getsockname()[0])
