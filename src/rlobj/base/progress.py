"""Signs of life of this process, by which the other processes of a run know that it works; and the
wish that it ends, which ends its waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = threading.Event()
"""Set while this process is asked to end: a wait for something that may never come ends, too."""

_LOCK = threading.Lock()
_count = 0
_waiting = 0


def beat() -> None:
    """Something was done: a token sampled, a response graded, a micro-batch trained on."""
    global _count
    _count += 1


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, the process waits for something with a time limit of its own, or for the others."""
    global _waiting
    with _LOCK:
        _waiting += 1
    try:
        yield
    finally:
        with _LOCK:
            _waiting -= 1
        beat()


def signs() -> tuple[int, bool]:
    """The number of beats so far, and whether the process waits."""
    return _count, _waiting > 0
