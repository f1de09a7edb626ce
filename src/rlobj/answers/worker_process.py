"""Start a worker process of the verifier, ask it, and tell a bad answer from a busy machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from rlobj.answers.worker import patience
from rlobj.base.errors import RunError
from rlobj.base.processes import new_token
from rlobj.base.progress import beat

_FOLDER = Path(__file__).parent
_START_SECONDS = 120.0
_LOAD_SECONDS = 30.0
"""Limit on loading math-verify before a question."""
_START_ATTEMPTS = 3
_FAULTS = ("timeout", "crash", "memory")
"""Reasons after which the process is replaced: the answer may be at fault, or the machine."""


class WorkerProcess:
    """A process that runs `worker.py` or a similar file; not thread-safe.

    Args:
        deadline: seconds of processor time for one question; then the process ends. It is killed if
            it does not get this time within `patience`.
        memory: limit on the address space of the process, in bytes.
        recycle_after: number of questions after which the process is replaced.
        file: path of the file, or its name in `rlobj/answers`.
        arguments: further arguments of the file.
        errors: receives the stderr of the process. Default: nothing does.

    Attributes:
        process: the process, or None before `start` and after `stop`.
        connection: to the process.
        token: that the next message of the process has before it.
    """

    def __init__(
        self,
        deadline: float,
        memory: int,
        recycle_after: int,
        file: str = "worker.py",
        arguments: Sequence[str] = (),
        errors: IO[bytes] | None = None,
    ) -> None:
        self._file, self._arguments = _FOLDER / file, arguments
        self._deadline = deadline
        self._memory = memory
        self._recycle_after = recycle_after
        self._errors = subprocess.DEVNULL if errors is None else errors
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: Connection | None = None
        self._ready = False
        self._asked = 0
        self.token = ""
        self._sound: set[str] = set()
        self._spent = False

    @property
    def pid(self) -> int | None:
        """Process id, or None if there is no process."""
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        """Start a new process, without waiting for its imports.

        It is sent a token, which its messages repeat.
        """
        self.stop()
        ours, theirs = Pipe()
        arguments = (theirs.fileno(), self._deadline, self._memory, *self._arguments)
        # -P: the other files of the worker's folder must not shadow modules. A fixed hash seed
        # makes sympy deterministic.
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(self._file), *map(str, arguments)],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.connection, self._ready, self._asked = ours, False, 0
        self._send()
        self._sound.clear()

    def judge(self, question: Sequence[Any], control: Sequence[Any]) -> tuple[Any, str]:
        """Return the reply to a question, or False if its answer is why there is none; the reason.

        None means that the gold answer or the machine is why there is none. The answer is at fault
        if this process decides the control question, and a second try ends in a timeout, crash or
        memory error like the first. There is no second try if the first one failed without such a
        fault, or if it used up its processor time, which no other process can take from it.

        Args:
            question: about the answer.
            control: the same about the gold answer.
        """
        reason, key = "", json.dumps(control)
        for _ in range(2):
            reply, reason = self.ask(*question)
            if reply is not None or reason.startswith("gold "):
                return reply, reason
            final = self._spent or reason not in _FAULTS
            if key not in self._sound:
                own, why = self.ask(*control)
                if own is None or own is False:
                    return None, f"gold {why}"
                self._sound.add(key)
            if final:
                break
        return False, reason

    def ask(self, *question: Any) -> tuple[Any, str]:
        """Return the reply (None = undecided) to a question of JSON values, and the reason.

        The question to `worker.py` is `gold, answer`, and the reply is whether they are equal. The
        reason is `timeout` after too much time and `crash` if the process died.

        Raises:
            RunError: a package cannot be loaded, or the process does not start.
        """
        connection = self._wait_until_ready()
        assert self.process is not None
        self._spent = False
        try:
            self._send(question)
            begun = self._check(self._receive(connection, _LOAD_SECONDS))
            reply = self._receive(connection, patience(self._deadline)) if begun else None
            if isinstance(reply, dict):
                self._check(reply)
            value, reason = reply or (None, "timeout")
        except (EOFError, OSError):
            self.process.kill()
            self._spent = self.process.wait() == -signal.SIGPROF
            value, reason = None, "timeout" if self._spent else "crash"
        except BaseException:  # after an interrupt, the late reply must not answer the next pair
            self.stop()
            raise
        beat()
        self._asked += 1
        if self._asked >= self._recycle_after or reason in _FAULTS:
            self.start()
        return value, reason

    def stop(self) -> None:
        """Kill the process if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        if self.connection is not None:
            self.connection.close()
        self.process = self.connection = None

    def _send(self, *question: Any) -> None:
        """Send a new token, and perhaps a question."""
        assert self.connection is not None
        self.token = new_token()
        message = [self.token, *question] if question else self.token
        with contextlib.suppress(BrokenPipeError):  # the process has ended, which `_receive` finds
            self.connection.send_bytes(json.dumps(message).encode())

    def _receive(self, connection: Connection, seconds: float) -> Any:
        """Return the next message, or None if none arrives in time.

        Raises:
            EOFError: the process has ended, or the message is not for the last token.
        """
        if not connection.poll(seconds):
            return None
        try:
            token, message = json.loads(connection.recv_bytes())
        except (ValueError, TypeError):
            token = message = None
        if token != self.token:
            raise EOFError
        return message

    def _check(self, status: dict[str, str | None] | None) -> bool:
        """Return whether the process started in time.

        Raises:
            RunError: the process reports that an import failed.
        """
        if status is not None and status["error"] is not None:
            self.stop()
            raise RunError(f"The worker process of a reward could not load: {status['error']}")
        return status is not None

    def _wait_until_ready(self) -> Connection:
        """Return the connection of a process that is ready; start one if necessary."""
        for _ in range(_START_ATTEMPTS):
            if self.process is None or self.process.poll() is not None:
                self.start()
            assert self.connection is not None
            with contextlib.suppress(EOFError, OSError):
                if self._ready or self._check(self._receive(self.connection, _START_SECONDS)):
                    self._ready = True
                    return self.connection
            self.stop()
        raise RunError(
            f"The worker process of a reward did not start in {_START_ATTEMPTS} attempts, with a "
            f"memory limit of {self._memory} bytes; MathVerifier(memory_gib=...) raises it."
        )
