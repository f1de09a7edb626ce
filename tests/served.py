"""`rlobj serve`, and the processes that belong to it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from forked import WITH_VLLM, Forked, wait_until
from vllm_tools import save_policy

from rlobj.base.addresses import free_port
from rlobj.samplers.vllm.auth import KEY_VARIABLE

READY = 400
"""Seconds for a server to start on a busy machine."""
PROGRAM = Path(__file__).with_name("forked_server.py")
ONE_PROCESS = {"distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor"}
"""Arguments of an engine without a worker process, which would import vLLM for ten seconds."""


@contextlib.contextmanager
def plain_server(model: str | Path, *words: str) -> Iterator[tuple[Forked, str]]:
    """vLLM's own server, with the key `plain`: its process and address."""
    port = free_port()
    first = [PROGRAM, "-m", "vllm.entrypoints.openai.api_server", f"--model={model}", *words]
    first += ["--dtype=float32", "--enforce-eager", f"--kv-cache-memory-bytes={64 << 20}"]
    first += [f"--{name.replace('_', '-')}={value}" for name, value in ONE_PROCESS.items()]
    environment = {**os.environ, **WITH_VLLM, "VLLM_NO_USAGE_STATS": "1"}
    with open(os.devnull, "w") as nowhere:
        process = Forked([*first, f"--port={port}", "--api-key=plain"], nowhere, env=environment)

    def answers() -> bool:
        assert process.poll() is None, "vLLM's server ended"
        try:
            with urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                return True
        except (URLError, OSError):
            return False

    try:
        wait_until(answers, READY)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@contextlib.contextmanager
def model_to_serve(root: Path) -> Iterator[Path]:
    """The folder of a tiny model, next to the keys and logs of the servers that are started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.delenv(KEY_VARIABLE, raising=False)
        save_policy(root / "model", tied=True, vocabulary=96)
        yield root / "model"


@contextlib.contextmanager
def serving(model: Path, *words: str, **options: Any) -> Iterator[Served]:
    """A server that is ready; it ends afterwards."""
    server = Served(model, model.parent, *words, **options)
    try:
        server.await_text("Ready")
        yield server
    finally:
        server.end()


class Served:
    """`rlobj serve` on a port of its own. Its key is the one that it makes.

    Args:
        model: folder that it serves.
        folder: of its log.
        options: words of the command line.
        port: to listen on; None = a free one.
        fork: whether its server is forked from a process that has imported vLLM.
        arguments: other arguments of the engine.
        environment: variables of the server, which its clients need as well.
    """

    def __init__(
        self,
        model: Path,
        folder: Path,
        *options: str,
        port: int | None = None,
        fork: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **environment: str,
    ) -> None:
        self.port, self.folder, self.environment = port or free_port(), model, environment
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"{self.port}.txt"
        words = ["serve", model, "--port", str(self.port), *options]
        small = {"kv_cache_memory_bytes": 64 << 20, **(arguments or {})}
        words += [f"--set={name}={value}" for name, value in small.items()]
        start = [str(PROGRAM)] if fork else ["-m", "rlobj_cli"]
        environment = {**os.environ, **environment, **(WITH_VLLM if fork else {})}
        with self.log.open("w") as file:
            self.process = Forked([*start, *words], file, env=environment)

    def await_text(self, text: str) -> None:
        wait_until(lambda: text in self.screen(), READY, self.process, self.log)

    def screen(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def server_processes(self) -> list[int]:
        """vLLM's: they are in a session of their own, which a child of `rlobj serve` leads."""
        try:
            task = Path(f"/proc/{self.process.pid}/task/{self.process.pid}")
            children = [int(child) for child in (task / "children").read_text().split()]
        except OSError:
            return []
        leaders = [child for child in children if session(child) == child]
        return [pid for pid in pids() if session(pid) in leaders]

    def kill_server(self) -> None:
        """Kill all of vLLM's processes."""
        for pid in self.server_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        running = self.server_processes()
        self.process.kill()
        self.process.wait(60)
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: gone(running))  # or the next server could find the port in use


def pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def session(pid: int) -> int | None:
    """The session of a process that runs; None of one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[3])


def gone(running: list[int]) -> bool:
    return all(session(pid) is None for pid in running)
