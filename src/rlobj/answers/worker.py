"""The process that decides what needs algebra, one question at a time, on its main thread.

This file is started by its path, and of rlobj it loads `rlobj.answers` alone: neither rlobj
itself nor torch with it. It speaks over the connection whose descriptor is its first argument:

    out  {"error": null | text}                          once, when it takes questions
    in   [gold, answer]                                  two final answers
    out  [true | false | null, reason]                   null = undecided
         or {"error": text}                              math-verify cannot be loaded

Few questions need math-verify, and loading it takes ten times as long as the rest: it is loaded on
another thread while other questions are answered.
math-verify's own time limits are off: they turn a timeout into "not equal". The parent kills this
process at its deadline instead. Should the parent be gone, an alarm ends the process.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Deciding:
    """The comparison of a gold and an answer, under a memory limit."""

    def __init__(self, deadline: float, memory: int) -> None:
        sys.path.append(str(Path(__file__).parents[2]))  # where rlobj lies
        from rlobj.answers.numeric import Numeric
        from rlobj.answers.settling import Settler

        self._deadline, self._memory = deadline, memory
        self._settler = Settler(Numeric(self._beyond), lambda: self._reason)
        self._algebra: Any = None
        self._loading = threading.Lock()
        self._reason = "numeric"

    def equal(self, gold: str, answer: str) -> tuple[bool | None, str]:
        """Whether both are the same answer, and what decided."""
        self._reason = "numeric"
        signal.setitimer(signal.ITIMER_REAL, 2 * self._deadline + 1)
        correct, reason = self._settler.settle(answer, gold)
        if not correct and self._reason == "math-verify":
            exhausted = self._algebra.swallowed.exhausted
            if exhausted or peak_memory() > self._memory // 2:
                return None, "memory"
        return correct, reason

    def load(self) -> None:
        """Import math-verify, unless it is loaded."""
        with self._loading:
            if self._algebra is None:
                from rlobj.answers.algebra import Algebra

                self._algebra = Algebra()

    def _beyond(self, answer: Any, gold: Any) -> bool | None:
        self.load()
        self._reason = "math-verify"
        return self._algebra.equal(answer, gold)


def peak_memory() -> int:
    """Most address space this process has held, in bytes; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0


def serve(connection: Connection, deadline: float, memory: int) -> None:
    """Answer questions until the parent closes the connection."""
    try:
        deciding = Deciding(deadline, memory)
    except Exception as error:
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    connection.send_bytes(json.dumps({"error": None}).encode())
    threading.Thread(target=deciding.load, daemon=True).start()
    while True:
        gold, answer = json.loads(connection.recv_bytes())
        try:
            reply: Any = deciding.equal(gold, answer)
        except MemoryError:
            reply = None, "memory"
        except ImportError as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            reply = None, f"error: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(reply).encode())


def main() -> None:
    """Entry point: `worker.py DESCRIPTOR DEADLINE MEMORY`, in seconds and bytes."""
    descriptor, deadline, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    for asked_to_end in (signal.SIGINT, signal.SIGTERM):  # the parent's business, not ours
        signal.signal(asked_to_end, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):  # not every system limits address space
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(descriptor), deadline, memory)


if __name__ == "__main__":
    main()
