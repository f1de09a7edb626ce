"""Start and stop vLLM's API server, with rlobj's worker extension and protected by a key."""

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
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

from packaging.version import Version

from rlobj.base.errors import ConfigError, RunError, reported
from rlobj.base.files import last_lines
from rlobj.samplers.vllm import auth
from rlobj.samplers.vllm.extension import EXTENSION
from rlobj.samplers.vllm.installed import check_vllm, installed_vllm, vllm_on_cpu
from rlobj.samplers.vllm.settings import WHOLE_PROMPTS, engine_arguments

STOPPING = 10.0
"""Seconds that a server has to stop before it is killed."""

_SHOWN = 40
"""Lines of the log in an error message: the first error of vLLM's processes is not the last."""


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
    model: str, host: str, port: int, arguments: Mapping[str, Any], lora_rank: int = 0
) -> list[str]:
    """Return the command line of the server; it does not contain the key.

    Args:
        model: folder or hub id.
        host: address to listen on.
        port: port to listen on.
        arguments: other engine arguments, by name.
        lora_rank: of the adapters of trainers; 0 = they send none.

    Raises:
        ConfigError: rlobj sets one of the arguments itself.
    """
    defaults: dict[str, Any] = {"max_model_len": "auto", "dtype": "bfloat16"}
    if vllm_on_cpu():
        defaults |= {"kv_cache_memory_bytes": 256 << 20, "enforce_eager": True, **WHOLE_PROMPTS}
        defaults["dtype"] = "float32"
    ours: dict[str, Any] = {
        "model": model,
        "host": host,
        "port": port,
        "worker_extension_cls": EXTENSION,
        "middleware": f"{auth.RequireKey.__module__}.{auth.RequireKey.__name__}",
        "disable_uvicorn_access_log": True,
    }
    number = (installed_vllm() or ("", "0"))[1]
    if Version(number) >= Version("0.32"):  # earlier ones need no word for it
        ours |= {"enable_scale_out": True}  # the path on which verifiers asks with token ids
    words = [sys.executable, "-P", "-m", "rlobj.samplers.vllm"]
    for name, value in {**defaults, **engine_arguments(arguments, ours, lora_rank)}.items():
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
        arguments: other engine arguments of vLLM, by name; dtype is float32 on a CPU, otherwise
            bfloat16.
        lora_rank: of the adapters of trainers; 0 = they send none.

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
        arguments: Mapping[str, Any] | None = None,
        lora_rank: int = 0,
    ) -> None:
        check_vllm()
        reached = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host
        self.url = f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
        self._host, self.port = host, port
        self.log: Path = auth.state_dir() / f"{port}.log"
        key = os.environ.get(auth.KEY_VARIABLE)
        self._key = key or secrets.token_urlsafe(32)
        self.key_path: Path | None = None if key else auth.key_file(port)
        self._command = command(model, host, port, arguments or {}, lora_rank)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # A health check would send the key to another program on this port.
        where = f"cannot listen on port {self.port} of {self._host}"
        with reported(ConfigError, where, OSError, advice="; use another port"):
            socket.create_server((self._host, self.port), family=family).close()
        environment = dict(os.environ)
        for name in ("VLLM_API_KEY", "VLLM_ENABLE_V1_MULTIPROCESSING"):
            environment.pop(name, None)
        environment |= {auth.KEY_VARIABLE: self._key, "VLLM_SERVER_DEV_MODE": "1"}
        environment |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
        if vllm_on_cpu():
            environment["TORCHDYNAMO_DISABLE"] = "1"  # it takes seconds and needs a C++ compiler
        if self.key_path is not None:  # before the server answers, and refuses who waits for it
            self.key_path.unlink(missing_ok=True)
            handle = os.open(self.key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(self._key)
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

    def __exit__(self, *_: object) -> None:
        """End all processes of the server: first by SIGTERM, after some seconds by SIGKILL."""
        assert self._process is not None
        if self.key_path is not None:
            self.key_path.unlink(missing_ok=True)
        try:
            if self.alive():
                os.killpg(self._process.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(STOPPING)
        finally:  # also after a second Ctrl-C
            kill_group(self._process.pid)
        self._process.wait()

    def wait(self) -> None:
        """Wait until the server answers.

        Raises:
            RunError: the server ended. Shows the end of its log.
        """
        request = Request(f"{self.url}/health", headers={"Authorization": f"Bearer {self._key}"})
        direct = build_opener(ProxyHandler({}))
        while True:
            if not self.alive():
                raise self._ended("ended before it was ready")
            with contextlib.suppress(OSError), direct.open(request, timeout=5):
                break
            time.sleep(0.2)

    def join(self) -> None:
        """Wait until the server ends by itself.

        Raises:
            RunError: always, when the server has ended. Shows the end of its log.
        """
        while self.alive():
            time.sleep(0.5)
        raise self._ended("ended")

    def alive(self) -> bool:
        """Tell whether the server's first process is running."""
        return self._process is not None and self._process.poll() is None

    def _ended(self, how: str) -> RunError:
        lines = last_lines(self.log)[-_SHOWN:]
        return RunError("\n".join([f"the server {how}; the end of {self.log}:", *lines]))
