"""The worker process: compares one pair of answers at a time, on its main thread.

This file is started by its path. It loads `rlobj.answers` and no torch. It communicates over the
connection whose file descriptor is its first argument:

    in   token
    out  {"error": null | text}                          once, when it is ready
    in   token, [gold, answer]                           two final answers
    in   token, [gold, null]                             has the gold answer a value?
    out  {"error": null}                                 its time begins
    out  [true | false | null, reason]                   null = undecided
         or {"error": text}                              math-verify cannot be loaded

Each message out has the last token before it: `[token, message]`.

`gym_worker` answers other questions in the same way.

Few pairs need math-verify, and loading it takes ten times as long as everything else. It is loaded
on another thread while other pairs are compared. Its own time limits are off, because they turn a
timeout into "not equal". Instead, the system ends this process when a question has used up its
processor time (SIGPROF), and the parent kills it at `patience`. If the parent no longer exists, an
alarm ends the process.
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


def patience(deadline: float) -> float:
    """Return the seconds by the clock in which a worker must get `deadline` of processor time.

    A busy machine shares its processors, so a verdict does not depend on what else runs.
    """
    return 4 * deadline + 10


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj


class Comparer:
    """Compares answers under a memory limit; math-verify is the last resort."""

    def __init__(self, memory: int) -> None:
        from rlobj.answers.comparison import check_equivalence
        from rlobj.answers.guards import may_take_long
        from rlobj.answers.numeric import NumericComparer

        self._memory = memory
        self._may_take_long = may_take_long
        self._check, self._values = check_equivalence, NumericComparer(self._compare_symbolically)
        self._math_verify: Any = None
        self._loading = threading.Lock()
        threading.Thread(target=self.load, daemon=True).start()

    def prepare(self, gold: str, answer: str | None) -> None:
        """Load what a question needs, before its time begins."""
        if self._may_take_long(f"{gold} {answer}"):
            self.load()

    def decide(self, gold: str, answer: str | None) -> tuple[bool | None, str]:
        """Return whether both are the same answer (None = undecided), and the reason.

        Without an answer, the gold answer is compared with itself, by value even if it is large.
        """
        self._values.reason, self._values.of_gold = "numeric", answer is None
        correct, reason = self._check(gold if answer is None else answer, gold, self._values)
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
        deadline: seconds of processor time for one question; then this process ends.
        build: returns an object whose method `decide` answers a question; `prepare`, if it has one,
            comes before.
    """
    token = json.loads(connection.recv_bytes())

    def tell(message: Any) -> None:
        connection.send_bytes(json.dumps([token, message]).encode())

    try:
        built = build()
    except Exception as error:
        tell({"error": f"{type(error).__name__}: {error}"})
        return
    tell({"error": None})
    while True:
        token, question = json.loads(connection.recv_bytes())
        try:
            getattr(built, "prepare", lambda *_: None)(*question)
            tell({"error": None})
            signal.setitimer(signal.ITIMER_REAL, patience(deadline) + 1)
            signal.setitimer(signal.ITIMER_PROF, deadline)
            reply: Any = built.decide(*question)
        except MemoryError:
            reply = None, "memory"
        except ImportError as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        except Exception as error:
            reply = None, f"error: {type(error).__name__}"
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        tell(reply)


def main(build: Callable[[int], Any]) -> None:
    """Entry point: `worker.py DESCRIPTOR DEADLINE MEMORY`, in seconds and bytes."""
    from rlobj.base.processes import hidden

    descriptor, deadline, memory = hidden(int(sys.argv[1])), float(sys.argv[2]), int(sys.argv[3])
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles them
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with contextlib.suppress(ValueError, OSError):  # not every system can limit address space
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    with contextlib.suppress(EOFError, ConnectionError):
        serve(Connection(descriptor), deadline, lambda: build(memory))


if __name__ == "__main__":
    main(Comparer)
