"""The process that runs math-verify, one question at a time, on its main thread.

This file is started by its path, with only the standard library and math-verify behind it: it must
import nothing from rlobj. It speaks over the connection whose descriptor is its first argument:

    out  {"error": null | text}                          once, when math-verify is loaded
    in   [gold, answer]                                  two LaTeX texts, neither of them in a box
    out  [true | false | null, reason]                   null = undecided

math-verify's own time limits are off: they turn a timeout into "not equal". The parent kills this
process at its deadline instead. Should the parent be gone, an alarm ends the process.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

Equal = Callable[[str, str], "tuple[bool | None, str]"]


class Swallowed(logging.Handler):
    """Remembers that math-verify caught an error which leaves the question open.

    math-verify answers "not equal" after running out of memory or stack, and logs the exception
    without showing it.
    """

    exhausted = False

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[0] if record.exc_info else None
        if error is not None and issubclass(error, (MemoryError, RecursionError)):
            self.exhausted = True


def load(memory: int) -> Equal:
    """Import math-verify; return the comparison of a gold and an answer under a memory limit."""
    from math_verify import LatexExtractionConfig, parse, verify

    swallowed = Swallowed()
    logger = logging.getLogger("math_verify")
    logger.handlers, logger.propagate = [swallowed], False
    logger.setLevel(logging.DEBUG)
    config = [LatexExtractionConfig(boxed_match_priority=0)]

    @functools.lru_cache(maxsize=256)  # the responses of a group share their gold
    def read(text: str) -> list[Any]:
        return parse(f"\\boxed{{{text}}}", config, parsing_timeout=0)

    def equal(gold: str, answer: str) -> tuple[bool | None, str]:
        swallowed.exhausted = False
        golds, answers = read(gold), read(answer)
        if not golds:
            return None, "gold not parsed"
        # The gold comes first: the comparison is not symmetric.
        correct = verify(golds, answers, timeout_seconds=0)
        if not correct and (swallowed.exhausted or peak_memory() > memory // 2):
            return None, "memory"
        return correct, "math-verify"

    return equal


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
        equal = load(memory)
    except Exception as error:
        connection.send_bytes(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    connection.send_bytes(json.dumps({"error": None}).encode())
    while True:
        gold, answer = json.loads(connection.recv_bytes())
        signal.setitimer(signal.ITIMER_REAL, 2 * deadline + 1)
        try:
            reply = equal(gold, answer)
        except MemoryError:
            reply = None, "memory"
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
