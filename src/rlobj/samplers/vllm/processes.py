"""End the processes of a server, which form one process group."""

from __future__ import annotations

import contextlib
import os
import signal

STOPPING = 10.0
"""Seconds that a server has to stop before it is killed."""


def kill_group(group: int) -> None:
    """Kill all other processes of a process group.

    Python's resource tracker is not killed: it frees the shared memory of the others, then ends.
    """
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) != group or process.pid == os.getpid():
                continue
            if not any("resource_tracker" in word for word in process.cmdline()):
                process.send_signal(signal.SIGKILL)
