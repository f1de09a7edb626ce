"""One killable worker process and the hard deadline on what it is asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError

__all__ = ["Worker"]

_WORKER_FILE = Path(__file__).parents[1] / "answers" / "worker.py"
_START_SECONDS = 120.0
_START_ATTEMPTS = 3


class Worker:
    """A process running `worker.py`; not thread-safe, one caller at a time.

    Args:
        deadline: seconds a question may take before the process is killed.
        memory: limit on the address space of the process, in bytes.
        recycle_after: questions after which a fresh process takes over.
    """

    def __init__(self, deadline: float, memory: int, recycle_after: int) -> None:
        self._deadline = deadline
        self._memory = memory
        self._recycle_after = recycle_after
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._ready = False
        self._asked = 0

    @property
    def pid(self) -> int | None:
        """Process id, or None while there is no process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Launch a fresh process without waiting for its imports."""
        self.stop()
        ours, theirs = Pipe()
        arguments = (_WORKER_FILE, theirs.fileno(), self._deadline, self._memory)
        # By path, so that rlobj (and torch with it) is not imported; -P keeps the other files of
        # this folder from shadowing modules. A fixed hash seed makes sympy repeatable.
        self._process = subprocess.Popen(
            [sys.executable, "-P", *map(str, arguments)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self._connection, self._ready, self._asked = ours, False, 0

    def ask(self, gold: str, answer: str) -> tuple[bool | None, str]:
        """The verdict and its reason; `(None, "timeout")` or `(None, "crash")` if there is none."""
        connection = self._wait_until_ready()
        try:
            connection.send_bytes(json.dumps([gold, answer]).encode())
            reply = self._receive(connection, self._deadline)
            if isinstance(reply, dict):
                self._check(reply)
            correct, reason = reply or (None, "timeout")
        except (EOFError, OSError):
            correct, reason = None, "crash"
        except BaseException:  # an interrupt leaves a reply on its way: not the next question's
            self.stop()
            raise
        self._asked += 1
        if self._asked >= self._recycle_after or reason in ("timeout", "crash", "memory"):
            self.start()
        return correct, reason

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _receive(self, connection: Connection, seconds: float) -> Any:
        """The next message, or None if none came in time."""
        return json.loads(connection.recv_bytes()) if connection.poll(seconds) else None

    def _check(self, greeting: dict[str, str | None] | None) -> bool:
        """Whether the process loaded in time.

        Raises:
            RunError: something is not installed as it should be.
        """
        if greeting is not None and greeting["error"] is not None:
            self.stop()
            raise RunError(f"The worker of the math verifier could not load: {greeting['error']}")
        return greeting is not None

    def _wait_until_ready(self) -> Connection:
        """The connection of a living process that takes questions."""
        for _ in range(_START_ATTEMPTS):
            if self._process is None or self._process.poll() is not None:
                self.start()
            assert self._connection is not None
            with contextlib.suppress(EOFError, OSError):
                if self._ready or self._check(self._receive(self._connection, _START_SECONDS)):
                    self._ready = True
                    return self._connection
            self.stop()
        raise RunError(
            f"The worker of the math verifier died or hung {_START_ATTEMPTS} times while starting "
            f"under a memory limit of {self._memory} bytes."
        )
