"""Signs of life of this process, by which the other processes of a run know that it works; and the
wish that it ends, which ends its waits."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = threading.Event()
"""Set while this process is asked to end: a wait for something that may never come ends, too."""

_LOCK = threading.Lock()
_count = 0
_waits = Counter[int | None]()
"""Waits by thread."""
_awaited: dict[int | None, int | None] = {}
"""Threads that wait for another one, by thread."""


def beat() -> None:
    """Something was done: a token sampled, a response graded, a micro-batch trained on."""
    global _count
    _count += 1


@contextmanager
def waiting(thread: threading.Thread | None = None) -> Iterator[None]:
    """Inside, this thread waits: for something with a time limit of its own, for the other
    processes, or for a thread of this one, which counts in its place."""
    waiter = threading.get_ident()
    with _LOCK:
        _waits[waiter] += thread is None
        _awaited.update({} if thread is None else {waiter: thread.ident})
    try:
        yield
    finally:
        with _LOCK:
            _waits[waiter] -= thread is None
            _awaited.pop(waiter, None)
        beat()


def signs() -> tuple[int, bool]:
    """The number of beats so far, and whether the main thread waits."""
    main = threading.main_thread().ident
    with _LOCK:
        return _count, _waits[_awaited.get(main, main)] > 0
