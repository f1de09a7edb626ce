"""Processes that end with their parent, and with all processes that they started.

Threads that the end of the program does not wait for, and the global random generators.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import resource
import secrets
import select
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

_SET_CHILD_SUBREAPER = 36
_DESCRIPTORS = 1024
"""`select` takes no larger ones."""


def hidden(descriptor: int) -> int:
    """Move a descriptor to a high number, drawn at random; code that writes to 3 or 4 misses it.

    Programs that this process starts do not get it.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _DESCRIPTORS)
    lowest = most // 2 + secrets.randbelow(max(most // 4, 1))
    kept = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
    os.close(descriptor)
    return kept


def end_with_parent(pipe: int = 0) -> None:
    """End this process and its group when the parent ends, also by SIGKILL.

    The parent holds the other end of the pipe and writes nothing more. When that end is closed, the
    Linux kernel kills the group, whatever code the processes run. Elsewhere, nothing happens.

    Args:
        pipe: the end that is read, of a process that leads its group. If it is stdin, stdin is
            empty afterwards.
    """
    kept = hidden(fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, 3))
    if pipe == 0:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    with contextlib.suppress(AttributeError):
        fcntl.fcntl(kept, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(kept, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(kept, fcntl.F_SETFL, fcntl.fcntl(kept, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([kept], [], [], 0)[0]:  # the parent had ended before
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, where Linux runs."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(process: int) -> list[int]:
    """The ids of the children of a process, of their children, and so on; empty without /proc."""
    found = [process]
    for each in found:  # which grows
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, file.read_text().split())
    return found[1:]


def kill_tree(process: int) -> None:
    """Kill a process, the group that it leads, and its descendants."""
    single = [process, *descendants(process)]
    for kill, targets in ((os.killpg, [process]), (os.kill, single)):
        for each in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(each, signal.SIGKILL)


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL; those for real time have none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(code: int) -> str:
    """How a process with this exit code ended: the name of a signal, or `the exit status 3`."""
    return signal_name(-code) if code < 0 else f"the exit status {code}"


def peak_memory() -> int:
    """The peak address space of this process in bytes; 0 if it is unknown."""
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("VmPeak:"):
                return int(line.split()[1]) * 1024
    return 0


def memory_is_short() -> bool:
    """Whether this process has used more than half of its limit on address space."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return limit != resource.RLIM_INFINITY and peak_memory() > limit // 2


class DaemonThreads(ThreadPoolExecutor):
    """Starts a thread for each call; the process can end while one of them hangs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer: Future[Any] = Future()

        def settle() -> None:
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(fn(*args, **kwargs))
                except BaseException as error:
                    answer.set_exception(error)

        threading.Thread(target=settle, daemon=True).start()
        return answer


def seed_generators(number: int) -> None:
    """Seed the global generators of the packages that are imported."""
    random.seed(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number % 2**32)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(number)  # `torch.manual_seed` takes 0.3 ms
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(number)
