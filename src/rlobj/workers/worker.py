"""A worker process: start it, ask it under a deadline, and kill it with all that it started."""

import contextlib
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.processes import ending, kill_tree
from rlobj.workers import child

_LOAD_SECONDS = 30.0
"""Limit by the clock on the first load of a package, which is no time of the question."""


class Failure(StrEnum):
    """Why a process that was replaced gave no reply: the question may be at fault, or the machine.

    Any other reason is an exception of the code in the process, such as `error: TypeError`.
    """

    TIMEOUT = "timeout"
    CRASH = "crash"
    MEMORY = "memory"


class NoReply(Exception):
    """There is no reply. The text says what the process did: `ended its process with SIGSEGV`.

    Attributes:
        reason: a `Failure`, or a kind such as `error: TypeError`.
        spent: the question has used up its processor time.
    """

    def __init__(self, reason: str, text: str, spent: bool = False) -> None:
        super().__init__(text)
        self.reason, self.spent = str(reason), spent


def clock_seconds(deadline: float) -> float:
    """Return the seconds by the clock in which a worker must get `deadline` of processor time.

    A busy machine shares its processors, so a verdict does not depend on what else runs.
    """
    return 4 * deadline + 10


class _Answering:
    """A process that answers on a connection."""

    _connection: Connection

    def kill(self) -> int | None:
        """Kill the process and all that it started; its exit code, if that is known."""
        raise NotImplementedError

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # `_hear` says how the process ended
            self._connection.send(message)

    def _hear(self, seconds: float) -> Any:
        """The value of the next message; see `Worker.ask`."""
        try:
            if not self._connection.poll(None if seconds == math.inf else max(seconds, 0.0)):
                self.kill()
                raise NoReply(Failure.TIMEOUT, f"did not answer within {seconds:g} seconds")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            code = self.kill()
            spent = code == -signal.SIGPROF
            reason = Failure.TIMEOUT if spent else Failure.CRASH
            text = "ended its process" + ("" if code is None else f" with {ending(code)}")
            raise NoReply(reason, text, spent) from None
        except BaseException:  # an interrupt: the late reply must not answer the next question
            self.kill()
            raise
        if kind == "error":
            self.kill()
            raise ConfigError(value)
        if kind == "failed":
            raise NoReply(value, f"raised {value}")
        return value


class Worker(_Answering):
    """A process that answers one question at a time; not thread-safe.

    It starts when it is needed, is replaced after a failure, and ends with this process, also by
    SIGKILL. Its temporary files are in a folder that is deleted when it ends.

    Args:
        target: `module:name` of the class whose object answers; see `child`.
        arguments: of the class, by name.
        memory: limit on the address space, in bytes; 0 = none.
        processor_seconds: of one question, after which the process ends; 0 = no limit.
        recycle_after: number of questions after which the process is replaced; 0 = never.
        start_seconds: time limit of a start.

    Attributes:
        process: None if there is none.
        opening: what the object says of itself, once it is `ready`.
        closed: no process is started any more.
    """

    def __init__(
        self,
        target: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        memory: int = 0,
        processor_seconds: float = 0.0,
        recycle_after: int = 0,
        start_seconds: float = 120.0,
    ) -> None:
        self._settings = {
            "target": target,
            "arguments": dict(arguments or {}),
            "memory": memory,
            "processor_seconds": processor_seconds,
        }
        self._deadline, self._memory = processor_seconds, memory
        self._recycle_after, self._start_seconds = recycle_after, start_seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.opening: Any = None
        self.closed = False

    @property
    def pid(self) -> int | None:
        """Process id, or None if there is no process."""
        return self.process and self.process.pid

    def start(self) -> None:
        """Start a new process, without waiting for its imports; see `ready`."""
        self.kill()
        if self.closed:
            raise RunError("the worker processes are closed")
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._folder = tempfile.mkdtemp(prefix="rlobj-worker-")
        # -P: the files beside the program must not shadow modules. A fixed hash seed makes sympy
        # and the datasets of reasoning-gym deterministic.
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self._folder},
                stdin=subprocess.PIPE,  # its end is the end of the process
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._ready, self._questions, self._sound = False, 0, set[str]()
        self._send({**self._settings, "path": sys.path})

    def ready(self) -> None:
        """Wait until a process can be asked; start one if there is none.

        Raises:
            NoReply: it ended, or did not answer in time.
            ConfigError: the object cannot be made.
        """
        if self.process is None or self.process.poll() is not None:
            self.start()
        if not self._ready:
            self.opening, self._ready = self._hear(self._start_seconds), True

    def ask(self, *question: Any, seconds: float = math.inf) -> Any:
        """The reply to a question, whose time does not include the start of a process.

        Raises:
            NoReply: there is none in this time, or the process has ended. It is killed.
            ConfigError: a package cannot be imported, or the object cannot be made.
        """
        self.ready()
        self._questions += 1
        self._send(question)
        reply = self._hear(seconds)
        if self._questions == self._recycle_after:
            self.start()
        return reply

    def fork(self) -> "Fork":
        """Make a copy of the process.

        Raises:
            NoReply, ConfigError: as `ready`.
        """
        self.ready()
        ours, theirs = socket.socketpair()
        self._send((child.FORK,))
        with theirs, contextlib.suppress(OSError):  # as in `_send`
            send_handle(self._connection, theirs.fileno(), self.pid)
        return Fork(Connection(ours.detach()), self._hear(self._start_seconds))

    def judge(self, question: Sequence[Any], control: Sequence[Any]) -> tuple[Any, str]:
        """Return the reply to a question, or False if its answer is why there is none; the reason.

        Replies are pairs of a value, None = undecided, and a reason. None means that the gold
        answer or the machine is why there is no value. The answer is at fault if this process
        decides the control question, and a second try ends in a timeout, crash or memory error like
        the first. There is no second try if the first one failed without such a fault, or if it
        used up its processor time, which no other process can take from it.

        Args:
            question: about the answer.
            control: the same about the gold answer.
        """
        reason, key = "", json.dumps(control)
        for _ in range(2):
            reply, reason, spent = self.reply(*question)
            if reply is not None or reason.startswith("gold "):
                return reply, reason
            if key not in self._sound:
                control_reply, why, _ = self.reply(*control)
                if control_reply is None or control_reply is False:
                    return None, f"gold {why}"
                self._sound.add(key)
            if spent or reason not in [*Failure]:
                break
        return False, reason

    def reply(self, *question: Any) -> tuple[Any, str, bool]:
        """Return the reply to a question, the reason, and whether its processor time is used up.

        Raises:
            ConfigError: a package cannot be loaded.
            RunError: the process does not start.
        """
        try:
            self.ready()
        except NoReply as error:
            raise RunError(
                f"The worker process of a reward {error} at its start, with a limit of "
                f"{self._memory} bytes of memory"
            ) from error
        spent = False
        try:
            value, reason = self.ask(
                *question, seconds=_LOAD_SECONDS + clock_seconds(self._deadline)
            )
        except NoReply as error:
            value, reason, spent = None, error.reason, error.spent
        if reason == Failure.MEMORY:
            self.start()
        return value, reason, spent

    def kill(self) -> int | None:
        if self.process is None:
            return None
        process, self.process = self.process, None
        kill_tree(process.pid)  # its group may outlive it
        with self._connection, process:
            code = process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def __del__(self) -> None:
        """Close both connections, which ends the process. A fork of this one does not kill it."""
        if self.process is not None and self.process.stdin is not None:
            self._connection.close()
            self.process.stdin.close()


class Fork(_Answering):
    """A copy of a worker process, with its own state. It is not replaced after a failure.

    Args:
        connection: on which it answers.
        process: its id.
    """

    def __init__(self, connection: Connection, process: int) -> None:
        self._connection, self._process = connection, process

    def ask(self, *question: Any, seconds: float) -> Any:
        """The reply to a question.

        Raises:
            NoReply: there is none in this time, or the process has ended. It is killed.
        """
        self._send(question)
        return self._hear(seconds)

    def kill(self) -> None:
        self._connection.close()
        if self._process:
            kill_tree(self._process)
            self._process = 0
