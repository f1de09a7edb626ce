"""Processes that end with their parent and with all that they started; the wish to end."""

import contextlib
import ctypes
import fcntl
import os
import select
import signal
import threading
from pathlib import Path

_SET_CHILD_SUBREAPER = 36


def end_with_parent() -> None:
    """End this process, which leads its group, and the group when the parent ends, also by SIGKILL.

    The parent holds the other end of stdin and writes nothing more. When that end is closed, the
    Linux kernel kills the group, whatever code the processes run. Elsewhere, nothing happens.
    Afterwards, stdin is empty.
    """
    kept = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
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
    processes = [process]
    for parent in processes:  # which grows
        with contextlib.suppress(OSError):
            for file in Path(f"/proc/{parent}/task").glob("*/children"):
                processes += map(int, file.read_text().split())
    return processes[1:]


def kill_tree(process: int) -> None:
    """Kill a process, the group that it leads, and its descendants."""
    single = [process, *descendants(process)]
    for kill, targets in ((os.killpg, [process]), (os.kill, single)):
        for target in targets:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(target, signal.SIGKILL)


def ending(code: int) -> str:
    """How a process with this exit code ended: the name of a signal, or `the exit status 3`."""
    if code >= 0:
        return f"the exit status {code}"
    with contextlib.suppress(ValueError):  # signals for real time have no name
        return signal.Signals(-code).name
    return f"signal {-code}"


ENDING = threading.Event()
"""Set while this process is asked to end: a wait for something that may never come ends, too."""
