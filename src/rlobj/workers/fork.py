"""A copy of a worker process, which has its own state and may fail alone."""

import signal
import socket
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from rlobj.base.errors import RunError
from rlobj.base.processes import ending, kill_tree
from rlobj.workers import child
from rlobj.workers.pool import Pool
from rlobj.workers.worker import Failure, NoReply


class Fork:
    """A copy of the process of a pool. It is not replaced after a failure.

    Args:
        pool: has one process, which has imported what the copy needs. It ends its copies, too.

    Raises:
        NoReply, ConfigError: as `Worker.ready`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        with theirs, pool.worker() as worker:
            self._process = worker.fork(theirs)

    def ask(self, *question: Any, seconds: float) -> Any:
        """The reply to a question.

        Raises:
            NoReply: there is none in this time, or the process has ended. It is killed.
        """
        try:
            self._connection.send(question)
            if not self._connection.poll(seconds):
                self.kill()
                raise NoReply(Failure.TIMEOUT, f"did not answer within {seconds:g} seconds")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            text = f"ended its process with {ending(self.kill())}"
            raise NoReply(Failure.CRASH, text) from None
        if kind != "reply":
            raise NoReply(value, f"raised {value}")
        return value

    def kill(self) -> int:
        """Kill the process and all that it started, if it still runs; its exit code."""
        self._connection.close()
        if not self._process:
            return 0
        process, self._process = self._process, 0
        kill_tree(process)
        with suppress(NoReply, RunError), self._pool.worker() as worker:  # which may have ended
            return worker.ask(child.ENDED, process)
        return -signal.SIGKILL
