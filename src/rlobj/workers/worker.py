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
import time
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any

from rlobj.base.errors import ConfigError, RunError
from rlobj.base.processes import descendants, ending, kill_tree
from rlobj.workers import child

_POLL = 1.0
"""Longest single wait, in seconds. A signal that arrives just before a wait is handled after it."""
_STARTS = 3
"""Attempts to start a process of rlobj's own code."""
_LOAD_SECONDS = 30.0
"""Limit by the clock on what a process does before the processor time of a question begins."""


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
        stacks: where the threads of the process stood, as `faulthandler` writes it.
    """

    def __init__(self, reason: str, text: str, spent: bool = False, stacks: str = "") -> None:
        super().__init__(text)
        self.reason, self.spent, self.stacks = str(reason), spent, stacks


def patience(deadline: float) -> float:
    """Return the seconds by the clock in which a worker must get `deadline` of processor time.

    A busy machine shares its processors, so a verdict does not depend on what else runs.
    """
    return 4 * deadline + 10


class Worker:
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
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._folder = tempfile.mkdtemp(prefix="rlobj-worker-")
        # -P: the files beside the program must not shadow modules. A fixed hash seed makes sympy
        # and the datasets of reasoning-gym deterministic.
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", child.__file__, str(theirs.fileno())],
                env={**os.environ, "PYTHONHASHSEED": "0", "TMPDIR": self._folder},
                stdin=subprocess.PIPE,  # its end is the end of the process
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
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

    def items(self, *question: Any, seconds: float) -> Iterator[Any]:
        """The items of a reply that is a generator, each in this time; the errors are of `ask`."""
        self.ready()
        self._send(question)
        try:
            while (reply := self._hear(seconds)) is not None:
                yield reply[0]
        except BaseException:  # also if no more items are asked for: none must come later
            self.kill()
            raise

    def fork(self, connection: socket.socket) -> int:
        """Make a copy of the process, which answers on this connection; its process id.

        Raises:
            NoReply, ConfigError: as `ready`.
        """
        self.ready()
        self._send((child.FORK,))
        with contextlib.suppress(OSError):  # as in `_send`
            send_handle(self._connection, connection.fileno(), self.pid)
        return self._hear(self._start_seconds)

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
            RunError: a package cannot be loaded, or the process does not start.
        """
        try:
            self._start_surely()
            value, reason = self.ask(*question, seconds=_LOAD_SECONDS + patience(self._deadline))
        except NoReply as error:
            return None, error.reason, error.spent
        except ConfigError as error:
            raise RunError(f"The worker process of a reward could not load: {error}") from error
        if reason == Failure.MEMORY:
            self.start()
        return value, reason, False

    def _start_surely(self) -> None:
        for _ in range(_STARTS):
            try:
                return self.ready()
            except NoReply:
                continue
        raise RunError(
            f"The worker process of a reward did not start in {_STARTS} attempts, with a "
            f"memory limit of {self._memory} bytes; MathVerifier(memory_gib=...) raises it."
        )

    def kill(self) -> int:
        """Kill the process and all that it started, if there is one; its exit code."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        kill_tree(process.pid)  # its group may outlive it
        with self._connection, self._errors, process:
            code = process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def __del__(self) -> None:
        """Close both connections, which ends the process. A fork of this one does not kill it."""
        if self.process is not None and self.process.stdin is not None:
            self._connection.close()
            self.process.stdin.close()

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # `_hear` says how the process ended
            self._connection.send(message)

    def _hear(self, seconds: float) -> Any:
        """The value of the next message; see `ask`."""
        end = time.monotonic() + seconds
        try:
            while not self._connection.poll(max(min(_POLL, end - time.monotonic()), 0.0)):
                if self.process is None or self.process.poll() is not None:
                    raise EOFError  # a fork of it keeps the connection open
                if time.monotonic() >= end:
                    raise self._no_reply(f"did not answer within {seconds:g} seconds")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._no_reply("") from None
        except BaseException:  # an interrupt: the late reply must not answer the next question
            self.kill()
            raise
        if kind == "error":
            self.kill()
            raise ConfigError(value)
        if kind == "failed":
            if value in [*Failure]:
                self.start()
            raise NoReply(value, f"raised {value}")
        return value

    def _no_reply(self, late: str) -> NoReply:
        """Why there is no reply: the text says that it is late, or that the process ended."""
        started = list[int]()
        if late and self.process is not None:
            started = descendants(self.process.pid)
            self.process.send_signal(signal.SIGABRT)  # it writes where its threads stand
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2)
        stacks = ""
        if not self._errors.closed:  # another thread may have closed all
            self._errors.seek(0)
            stacks = self._errors.read().decode(errors="replace")
        code = self.kill()
        for process in started:  # also those that had left its group
            kill_tree(process)
        spent = not late and code == -signal.SIGPROF
        reason = Failure.TIMEOUT if late or spent else Failure.CRASH
        stacks = stacks.rpartition("Fatal Python error")[2]
        return NoReply(reason, late or f"ended its process with {ending(code)}", spent, stacks)
