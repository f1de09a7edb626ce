"""Python programs forked from one that has imported their packages: they start in milliseconds.

A new interpreter needs four CPU seconds to import what `rlobj train` does, and the tests start some
hundred. What is forked is a process of its own all the same: with its own environment, folder,
output, signals and exit code; but it does not free its modules when it ends. Tests of how a program
starts use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from rlobj.base.addresses import free_port

IMPORTED = (
    "rlobj.training.loop.running",
    "rlobj_cli.screen.runs",
    "accelerate",
    "pandas",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)
"""What trainings import sooner or later; what is not installed is left out."""
ALSO = "FORKED_IMPORTS"
WITH_VLLM = {ALSO: "vllm.entrypoints.llm vllm.v1.engine.llm_engine vllm.v1.worker.cpu_worker"}
"""A variable of processes that are forked from one that has imported these as well."""
ON_CPUS = {"CUDA_VISIBLE_DEVICES": ""}
"""A variable of processes that compute on CPUs, also where there is a GPU."""
TEST_MODULES = {"PYTHONPATH": os.pathsep.join(map(str, Path(__file__).resolve().parents[:2]))}
"""A variable of processes that import what tests import: pytest's `pythonpath`."""
Words = Sequence[str | Path]


class Forked:
    """A process with what the tests use of `subprocess.Popen`.

    Args:
        words: the arguments of `python`: `-m MODULE ...`, `-c CODE ...` or `FILE ...`.
        stdout: an open file.
        stderr: an open file. Default: that of stdout.
        env: all variables. Default: those of this process.
        cwd: the working folder. Default: that of this process.
    """

    def __init__(
        self,
        words: Words,
        stdout: IO[Any],
        stderr: IO[Any] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = list(map(str, words)), dict(env or os.environ), str(cwd or Path.cwd())
        outputs = [stdout.fileno(), (stderr or stdout).fileno()]
        with theirs:
            message = json.dumps(asked).encode()
            socket.send_fds(_parent(), [message], [theirs.fileno(), *outputs])
        self.pid = int(self._status.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, or minus the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._status.recv(64))
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """A signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def wait_until(
    condition: Callable[[], Any],
    seconds: float = 300,
    process: Forked | None = None,
    log: Path | None = None,
) -> None:
    """Wait; the log is shown if it takes longer than these seconds or the process ends before."""
    deadline = time.monotonic() + seconds
    while not condition():
        said = log.read_text() if log and log.exists() else "it did not happen"
        assert process is None or process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.01)


def alive(process: int) -> bool:
    """Whether it runs; one that has ended may wait for a parent that asks how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run(words: Words, timeout: float = 240, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run` with `capture_output` and `text`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        process = Forked(words, out, error, **settings)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        out.seek(0), error.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), error.read())


def run_ranks(
    words: Words, count: int = 2, code: int = 0, timeout: float = 240, **variables: str
) -> str:
    """The same words in several processes, as torchrun starts them; what the first printed.

    Several compute on CPUs, also where there is a GPU: NCCL does not share one between processes.

    Args:
        words: as of `Forked`.
        count: how many processes.
        code: the exit code that each must have.
        timeout: seconds for all together.
        variables: added to the environment.
    """
    port, end = str(free_port()), time.monotonic() + timeout
    same = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **ON_CPUS}
    processes: list[Forked] = []
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
        for rank, output in enumerate(outputs):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
            environment = {**os.environ, **variables, **(same if own else {}), **own}
            process = Forked(words, output, env=environment)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(max(end - time.monotonic(), 0)) for process in processes]
        texts = [(output.seek(0), output.read())[1] for output in outputs]
    assert codes == [code] * count, "\n".join(texts)
    return texts[0]


def call_in_ranks(function: Callable[[int, int, str], None], size: int, folder: Path) -> None:
    """`function(rank, size, folder)` of a test's module, in a process for each rank."""
    name, module = function.__name__, function.__module__
    code = f"import os, sys; from {module} import {name};"
    code += f"{name}(int(os.environ['RANK']), {size}, sys.argv[1])"
    paths = [str(Path(inspect.getfile(function)).parent), str(Path(__file__).parent)]
    run_ranks(["-c", code, folder], size, timeout=600, PYTHONPATH=os.pathsep.join(paths))


@functools.cache
def _parent() -> socket.socket:
    """The connection to the process that forks, which ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables = {**os.environ, "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=variables,
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(requests: socket.socket) -> list[str]:
    """Fork for every request; returns in what was forked, with its words."""
    imported, others = "", dict[str, socket.socket]()
    while True:
        message, fds, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        with contextlib.suppress(ChildProcessError):
            if not message:
                _close([], others)
                signal.alarm(5)  # for those that a test left running
            while os.waitpid(-1, os.WNOHANG if message else 0)[0]:
                pass
        if not message:
            os._exit(0)
        words, environment, folder = json.loads(message)
        also = environment.get(ALSO, imported)
        if also == imported and os.fork() == 0:
            break
        if also != imported and also not in others:
            others[also], theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                requests.close()
                requests, imported = theirs, also
                _close(fds, others)
                _import(also.split())
                continue
            theirs.close()
        if also != imported:
            socket.send_fds(others[also], [message], fds)
        _close(fds, {})
    requests.close()
    _close([], others)
    status = socket.socket(fileno=fds[0])
    if child := os.fork():  # this one tells how the other ends
        os.closerange(0, 3), os.close(fds[1]), os.close(fds[2])
        status.send(str(child).encode())
        status.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        os._exit(0)
    status.close()
    for number, fd in enumerate(fds[1:], 1):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return words


def _close(fds: Sequence[int], sockets: dict[str, socket.socket]) -> None:
    for fd in fds:
        os.close(fd)
    for each in sockets.values():
        each.close()
    sockets.clear()


def _become(words: list[str]) -> None:
    """Run what `python *words` runs."""
    kind, added = words[0], os.environ.get("PYTHONPATH", "")
    beside = str(Path(kind).parent) if not kind.startswith("-") else str(Path.cwd())
    sys.path[:1] = [beside, *filter(None, added.split(os.pathsep))]
    if kind == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *words[2:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def _import(names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.freeze()  # a process that collects garbage would first copy all of this
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be forked"


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    _import(IMPORTED)
    words, code = _serve(requests), None
    try:
        _become(words)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code or 0)  # to free the modules takes two CPU seconds: it copies them first


if __name__ == "__main__":
    _main()
