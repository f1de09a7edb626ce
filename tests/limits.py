"""Limits of time and memory for what a stranger's file may cost."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def within(seconds: int, memory: int = 4 << 30) -> Iterator[None]:
    """Fail if the block takes more CPU seconds, hangs (ten times as long), or takes more than this
    many bytes of address space besides."""

    def late(*_: Any) -> None:
        raise AssertionError(f"it took more than {seconds} seconds of CPU time, or hangs")

    before = [signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)]
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    signal.alarm(10 * seconds)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + memory, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGPROF, before[1])
