"""Start and stop vLLM's API server, with rlobj's worker extension and protected by a key."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from rlobj.base.errors import Argument, ConfigError, RunError
from rlobj.base.files import last_lines
from rlobj.samplers.vllm import auth
from rlobj.samplers.vllm.extension import EXTENSION
from rlobj.samplers.vllm.installed import check_vllm, vllm_on_cpu
from rlobj.samplers.vllm.settings import WHOLE_PROMPTS, ServerSettings, check_extra

STOPPING = 10.0
"""Seconds that a server has to stop before it is killed."""

_ARGUMENTS = (
    "host",
    "port",
    "middleware",
    "api_key",
    "root_path",
    "uds",
    "api_server_count",
    "headless",
    "config",
)
"""Arguments that rlobj sets itself, or with which a sync would miss workers."""
_SHOWN = 40
"""Lines of the log in an error message: the first error of vLLM's processes is not the last."""
_CLOSED = 10.0
"""Seconds without an open port after which a server that was ready counts as ended."""


def kill_group(group: int) -> None:
    """Kill all other processes of a process group.

    Python's resource tracker is not killed: it frees the shared memory of the others, then ends.
    """
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) != group or process.pid == os.getpid():
                continue
            if not any("resource_tracker" in word for word in process.cmdline()):
                process.send_signal(signal.SIGKILL)


def command(
    model: str, host: str, port: int, dtype: str, arguments: Mapping[str, Any]
) -> list[str]:
    """Return the command line of the server; it does not contain the key.

    Args:
        model: folder or hub id.
        host: address to listen on.
        port: port to listen on.
        dtype: float32, bfloat16 or float16.
        arguments: other engine arguments, by name.

    Raises:
        ConfigError: rlobj sets one of the arguments itself.
    """
    check_extra(arguments, _ARGUMENTS)
    options = {name.replace("-", "_"): value for name, value in arguments.items()}
    defaults: dict[str, Any] = {"max_model_len": "auto"}
    if vllm_on_cpu():
        defaults |= {"kv_cache_memory_bytes": 256 << 20, "enforce_eager": True, **WHOLE_PROMPTS}
    ours: dict[str, Any] = {
        "model": model,
        "host": host,
        "port": port,
        "dtype": dtype,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "worker_extension_cls": EXTENSION,
        "middleware": f"{auth.RequireKey.__module__}.{auth.RequireKey.__name__}",
        "disable_uvicorn_access_log": True,
    }
    words = [sys.executable, "-P", "-m", "rlobj.samplers.vllm"]
    for name, value in {**defaults, **options, **ours}.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"--{flag}={text}")
    return words


class Server:
    """A server in separate processes; a context manager that ends all of them on exit.

    If the environment has no key, a key is generated. While the server runs, `auth.key_file(port)`
    contains it, so that this user's trainers on this machine find it.

    Args:
        model: folder or hub id.
        host: address to listen on; with 127.0.0.1 only this machine can connect.
        port: port to listen on.
        dtype: dtype of the weights: float32, bfloat16, float16 or auto (float32 on a CPU,
            otherwise bfloat16).
        arguments: other engine arguments of vLLM, by name.

    Raises:
        MissingExtra: vLLM is not installed.
        ConfigError: this version of vLLM is not supported, or rlobj sets one of the arguments.
    """

    def __init__(
        self,
        model: str,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        dtype: str = "auto",
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        check_vllm()
        if dtype == "auto":
            dtype = "float32" if vllm_on_cpu() else "bfloat16"
        self._host, self.port, self.dtype = host, port, dtype
        reached = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
        self._reached = reached
        self.url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
        self.local = auth.is_local(host)
        self.default_url = self.url == ServerSettings().url
        self.log: Path = auth.state_dir() / f"{port}.log"
        key = os.environ.get(auth.KEY_VARIABLE)
        self._key = key or secrets.token_urlsafe(32)
        self.key_path: Path | None = None if key else auth.key_file(port)
        self._command = command(model, host, port, dtype, arguments or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Id of the server's first process, which is also the id of their process group."""
        assert self._process is not None, "the server has not been started"
        return self._process.pid

    def __enter__(self) -> Server:
        self._claim()  # the log of this port may be that of a server that runs
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("VLLM_API_KEY", "VLLM_ENABLE_V1_MULTIPROCESSING")
        }
        environment |= {auth.KEY_VARIABLE: self._key, "VLLM_SERVER_DEV_MODE": "1"}
        environment |= {"VLLM_NO_USAGE_STATS": "1"}
        if vllm_on_cpu():
            environment["TORCHDYNAMO_DISABLE"] = "1"  # it takes seconds and needs a C++ compiler
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops it
            )
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait(self, seconds: float) -> None:
        """Wait until the server answers.

        Raises:
            RunError: the server ended, or does not answer in time. Shows the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not self._answers():
            if not self.alive():
                raise RunError(f"the server ended before it was ready; {self._tail()}")
            if time.monotonic() > deadline:
                raise RunError(f"the server is not ready after {seconds:g} s; {self._tail()}")
            time.sleep(0.2)
        if self.key_path is not None:
            self.key_path.unlink(missing_ok=True)
            handle = os.open(self.key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(self._key)

    def join(self) -> None:
        """Wait until the server ends by itself, or refuses connections for some seconds.

        When its engine is killed, vLLM's first process may close the port and never end.

        Raises:
            RunError: always, when the server has ended. Shows the end of its log.
        """
        heard = time.monotonic()
        while self.alive() and time.monotonic() - heard < _CLOSED:
            if not self._refuses():
                heard = time.monotonic()
            time.sleep(0.5)
        raise RunError(f"the server ended; {self._tail()}")

    def alive(self) -> bool:
        """Tell whether the server's first process is running."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End all processes of the server: first by SIGTERM, after some seconds by SIGKILL."""
        if self._process is None:
            return
        if self.key_path is not None:
            self.key_path.unlink(missing_ok=True)
        try:
            if self.alive():
                os.killpg(self.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOPPING)
        finally:  # also after a second Ctrl-C
            kill_group(self.pid)
        self._process.wait()

    def _claim(self) -> None:
        """Refuse a port that is in use: health checks would send the key to the other program."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self._host, self.port))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen at {self._host}, port {self.port}: {error.strerror}. Choose "
                    "another ",
                    Argument("port", "N"),
                    ", or stop the program that uses this one.",
                ) from error

    def _refuses(self) -> bool:
        try:
            socket.create_connection((self._reached, self.port), timeout=5).close()
        except OSError as error:
            return isinstance(error, ConnectionRefusedError)
        return False

    def _answers(self) -> bool:
        request = Request(f"{self.url}/health", headers={"Authorization": f"Bearer {self._key}"})
        direct = build_opener(ProxyHandler({}))
        try:
            with direct.open(request, timeout=5):
                return self.alive()
        except OSError:
            return False

    def _tail(self) -> str:
        return f"the end of {self.log}:\n" + "\n".join(last_lines(self.log)[-_SHOWN:])
