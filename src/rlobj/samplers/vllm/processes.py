"""The end of a server's processes, which are one process group."""

from __future__ import annotations

import contextlib
import os
import signal

__all__ = ["STOPPING", "kill_group"]

STOPPING = 10.0
"""Seconds for a server to stop when it is asked to."""


def kill_group(group: int) -> None:
    """Kill the processes of a group, but this one.

    Python's resource tracker is spared: it frees the others' shared memory, then ends by itself.
    """
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) != group or process.pid == os.getpid():
                continue
            if not any("resource_tracker" in word for word in process.cmdline()):
                process.send_signal(signal.SIGKILL)
