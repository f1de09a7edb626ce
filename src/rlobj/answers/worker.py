"""The worker process: compares one pair of answers at a time, on its main thread.

This file is started by its path. It loads `rlobj.answers` and no torch. It communicates over the
connection whose file descriptor is its first argument:

    out  {"error": null | text}                          once, when it is ready
    in   [gold, answer]                                  two final answers
    out  [true | false | null, reason]                   null = undecided
         or {"error": text}                              math-verify cannot be loaded

`gym_worker` answers other questions in the same way.

Few pairs need math-verify, and loading it takes ten times as long as everything else. It is loaded
on another thread while other pairs are compared. Its own time limits are off, because they turn a
timeout into "not equal"; the parent kills this process at the deadline instead. If the parent no
longer exists, an alarm ends the process.
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


class Comparer:
    """Compares answers under a memory limit; math-verify is the last resort."""

    def __init__(self, memory: int) -> None:
        sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj
        from rlobj.answers.equivalence import check_equivalence
        from rlobj.answers.numeric import NumericComparer

        self._memory = memory
        self._check, self._values = check_equivalence, NumericComparer(self._compare_symbolically)
        self._math_verify: Any = None
        self._loading = threading.Lock()
        threading.Thread(target=self.load, daemon=True).start()

    def decide(self, gold: str, answer: str) -> tuple[bool | None, str]:
        """Return whether both are the same answer (None = undecided), and the reason."""
        self._values.reason = "numeric"
        correct, reason = self._check(answer, gold, self._values)
        if not correct and self._values.reason == "math-verify":
            exhausted = self._math_verify.exhaustion.exhausted
            if exhausted or peak_memory() > self._memory // 2:
                return None, "memory"
        return correct, reason

    def load(self) -> None:
        """Import math-verify if it is not loaded yet."""
        with self._loading:
            if self._math_verify is None:
                from rlobj.answers.symbolic import MathVerifyComparer

                self._math_verify = MathVerifyComparer()

    def _compare_symbolically(self, answer: Any, gold: Any) -> bool | None:
        self.load()
        self._values.reason = "math-verify"
        return self._math_verify.equal(answer, gold)


def peak_memory() -> int:
    """Return the peak address space of this process in bytes; 0 if it is unknown."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0


def serve(connection: Connection, deadline: float, build: Callable[[], Any]) -> None:
    """Answer questions until the parent closes the connection.

    Args:
        connection: to the parent.
        deadline: in seconds; an alarm ends this process at twice the deadline.
        build: returns an object whose method `decide` answers a question.
    """
    try:
        built = build()
    except Exception as error:
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    connection.send_bytes(json.dumps({"error": None}).encode())
    while True:
        question = json.loads(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, 2 * deadline + 1)
        try:
            reply: Any = built.decide(*question)
        except MemoryError:
            reply = None, "memory"
        except ImportError as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            reply = None, f"error: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.send_bytes(json.dumps(reply).encode())


def main(build: Callable[[int], Any]) -> None:
    """Entry point: `worker.py DESCRIPTOR DEADLINE MEMORY`, in seconds and bytes."""
    descriptor, deadline, memory = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ValueError, OSError):  # not every system can limit address space
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(descriptor), deadline, lambda: build(memory))


if __name__ == "__main__":
    main(Comparer)
