"""A worker process: start it, ask it under a deadline, and kill it with all that it started."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.processes import ending, kill_tree
from rlobj.workers import child

_POLL = 1.0
"""Longest single wait, in seconds. A signal that arrives just before a wait is handled after it."""
_LARGEST = 1 << 28
"""Bytes of the largest message of a process."""
_DAY = 86_400.0


class Worker:
    """A process that answers one question at a time; not thread-safe.

    The process ends with this one, also by SIGKILL. What its code writes to any descriptor is taken
    for no answer: an answer repeats a token of the question.

    Args:
        target: `module:name` of the class whose object answers; see `child`.
        arguments: of the class, by name.
        memory: limit on the address space, in bytes; 0 = none.
        processor_seconds: of one question, after which the process ends with SIGPROF; 0 = no limit.
        tells: the class has a further argument, `tell`.
        keeps_errors: keep what the process writes to stderr.
        own_folder: its temporary files are in a folder that is deleted when it ends.

    Attributes:
        process: None before `start` and after `kill`.
        opening: what its object says of itself, once it is `ready`.
        code: the exit code of the last process, after `kill`.
        errors: what it wrote to stderr.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        memory: int = 0,
        processor_seconds: float = 0.0,
        tells: bool = False,
        keeps_errors: bool = False,
        own_folder: bool = False,
    ) -> None:
        self._settings = {
            "target": target,
            "arguments": dict(arguments or {}),
            "memory": memory,
            "processor_seconds": processor_seconds,
            "tells": tells,
        }
        self._keeps_errors, self._own_folder = keeps_errors, own_folder
        self.process: subprocess.Popen[bytes] | None = None
        self.opening: Any = None
        self._ready, self.code, self.errors = False, 0, ""

    @property
    def pid(self) -> int | None:
        """Process id, or None if there is no process."""
        return self.process and self.process.pid

    def start(self) -> None:
        """Start a new process, without waiting for its imports; see `ready`."""
        self.kill()
        self._connection, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile() if self._keeps_errors else None  # noqa: SIM115
        self._folder = tempfile.mkdtemp(prefix="rlobj-worker-") if self._own_folder else ""
        folder = {"TMPDIR": self._folder} if self._folder else {}
        # -P: the files beside the program must not shadow modules. A fixed hash seed makes sympy
        # and the datasets of reasoning-gym deterministic.
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONHASHSEED": "0", **folder},
                stdin=subprocess.PIPE,  # its end is the end of the process
                stdout=subprocess.DEVNULL,
                stderr=self._stderr or subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._ready, self._heard, self._tokens = False, bytearray(), deque[str](maxlen=2)
        self.send({**self._settings, "path": sys.path})

    def ready(self, seconds: float = math.inf) -> None:
        """Wait until a process can be asked; start one if there is none.

        Raises:
            TimeoutError, EOFError, ConfigError: as `ask`.
        """
        if self.ended():
            self.start()
        if not self._ready:
            self.opening = self._next_value(seconds, seconds)
            self._ready = True

    def ask(self, *question: Any, seconds: float = math.inf) -> Any:
        """The reply to a question.

        Raises:
            TimeoutError: there is none in this time, and the process is killed; the text says so.
            EOFError, ConfigError: as `hear`.
        """
        end = time.monotonic() + seconds
        self.send(*question, seconds=seconds)
        return self._next_value(max(end - time.monotonic(), 0.0), seconds)

    def send(self, *question: Any, seconds: float = _DAY) -> None:
        """Send a question; `hear` says if there is no process that reads it."""
        message = pickle.dumps((token := secrets.token_hex(8), question))
        self._tokens.append(token)
        with contextlib.suppress(OSError):
            self._connection.settimeout(min(seconds, _DAY))
            self._connection.sendall(message)

    def hear(self, seconds: float) -> tuple[str, Any]:
        """The next message, as its kind and value. What the process prints is printed here.

        Raises:
            TimeoutError: there is none in this time.
            EOFError: it has ended, or has written something else and is killed; the text says how.
            ConfigError: a package cannot be imported, or the object cannot be made.
        """
        end = time.monotonic() + seconds
        while True:
            try:
                token, kind, value = json.loads(self._line(end).decode())
            except (ValueError, TypeError, RecursionError):
                token, kind, value = None, "", ""
            prints = kind in ("stdout", "stderr")
            # What is printed may have been written before the last question came.
            if token not in self._tokens or (token != self._tokens[-1] and not prints):
                self._refuse()
            if kind == "error":
                self.kill()
                raise ConfigError(value)
            if not prints:
                return kind, value
            getattr(sys, kind).write(value.encode(errors="replace").decode())
            if time.monotonic() >= end:
                raise TimeoutError

    def ended(self) -> bool:
        """Whether no process runs. What was started by one that has ended is killed."""
        if self.process is not None and self.process.poll() is not None:
            self.kill()
        return self.process is None

    def quiet(self) -> bool:
        """Whether it runs and waits for a question. It is killed if it has said something else."""
        if self.ended():
            return False
        self._connection.settimeout(0)
        try:
            self._heard += self._connection.recv(1)
        except BlockingIOError:
            if not self._heard:
                return True
        except OSError:
            pass
        self.kill()
        return False

    def kill(self, patience: float = 0.0) -> None:
        """Kill the process and all that it started, if there is one.

        Args:
            patience: seconds that it has to end by itself.
        """
        if self.process is None:
            return
        process, self.process = self.process, None
        if patience:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._connection.shutdown(socket.SHUT_RDWR)
                process.wait(patience)
        kill_tree(process.pid)  # its group may outlive it
        with self._connection, process:
            self.code = process.wait()
        if self._stderr:
            with self._stderr as file:
                file.seek(0)
                self.errors = file.read().decode(errors="replace")
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __del__(self) -> None:
        """Close both connections, which ends the process. A fork of this one does not kill it."""
        if self.process is not None and self.process.stdin is not None:
            self._connection.close()
            self.process.stdin.close()

    def _next_value(self, seconds: float, limit: float) -> Any:
        """The value of the next message, which comes in these seconds of a limit; see `ask`."""
        try:
            return self.hear(seconds)[1]
        except TimeoutError:
            self.kill()
            raise TimeoutError(f"did not answer within {limit:g} seconds") from None

    def _line(self, end: float) -> bytearray:
        """The next line; see `hear`."""
        searched = 0
        while (length := self._heard.find(b"\n", searched)) < 0:
            searched = len(self._heard)
            self._read(end)
            if len(self._heard) > _LARGEST:
                self._refuse()
        line = self._heard[:length]
        del self._heard[: length + 1]
        return line

    def _read(self, end: float) -> None:
        """Read what the process has written, or wait for it for a while."""
        if (process := self.process) is None:
            raise EOFError("has no process")
        left, data = end - time.monotonic(), b""
        try:
            self._connection.settimeout(max(min(_POLL, left), 1e-6))
            data = self._connection.recv(1 << 16)
        except TimeoutError:
            if process.poll() is None:  # else a fork of it keeps the connection open
                if left <= 0:
                    raise
                return
        except OSError:
            pass
        if not data:
            self.kill()
            raise EOFError(f"ended its process with {ending(self.code)}")
        self._heard += data
        if left <= 0 and b"\n" not in data:  # data may always be ready
            raise TimeoutError

    def _refuse(self) -> None:
        """Kill a process that has written something that is no message."""
        self.kill()
        raise EOFError("wrote to the connection of its process")
