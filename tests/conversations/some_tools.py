"""Tools that fail in all ways; the tests name them by this file."""

import asyncio
import contextlib
import ctypes
import multiprocessing
import os
import random
import re
import sys
import tempfile
import threading
import time
from pathlib import Path

from rlobj.conversations import ToolError


def add(a: int, b: int = 0) -> int:
    """Add two integers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


def fail(how: str, note: str = ""):
    """Fail in some way.

    Args:
        how: The way.
        note: A file to write the ids of processes and the folder of temporary files to.
    """
    return globals()[f"fail_{how}"](Path(note))


def fail_raise(note):
    raise KeyError("gone " + "x" * 10_000)


def fail_own(note):
    raise ToolError("no such city")


def fail_sleep(note):
    time.sleep(100)


def fail_pattern(note):
    re.match("(a+)+$", "a" * 60 + "b")


def fail_exit(note):
    os._exit(3)


def fail_exit_with_child(note):
    if os.fork() == 0:
        time.sleep(60)
    os._exit(3)


def fail_sys_exit(note):
    sys.exit(3)


def fail_segfault(note):
    ctypes.string_at(0)


def fail_memory(note):
    return "x" * (8 << 30)


def fail_print(note):
    for stream in (sys.stdout, sys.stderr):
        for _ in range(2_000):
            print("y" * 10_000, file=stream)
    return "printed"


def fail_long(note):
    return "a" * 1_000_000 + "z" * 1_000_000


def fail_none(note):
    return None


def fail_surrogate(note):
    return "\ud800!"


def fail_fork(note):
    os.fork()
    return "once"


def fail_close(note):
    os.closerange(3, 1 << 14)
    time.sleep(100)


def fail_flood(note):
    """Write for ever to the connection, without the end of a line."""
    [connection] = [int(x) for x in os.listdir("/proc/self/fd") if _is_socket(x)]
    while True:
        os.write(connection, b"x" * 65536)


def fail_unnamed_signal(note):
    os.kill(os.getpid(), 40)
    time.sleep(100)


def fail_guess(note):
    """Write to, and close, the descriptors that a program may think of."""
    for descriptor in range(256):
        with contextlib.suppress(OSError):
            os.write(descriptor, b'["7", ""]\n')
    os.closerange(3, 256)
    return "guessed"


def _forge():
    sockets = [each for each in os.listdir("/proc/self/fd") if _is_socket(each)]
    for each in sockets:
        os.write(int(each), b'["7", ""]\n["token", ["7", ""]]\n')


def _is_socket(descriptor):
    try:
        return "socket" in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False


def fail_forge(note):
    _forge()
    return "forged"


def fail_forge_later(note):
    threading.Timer(0.2, _forge).start()
    return "later"


def fail_leave(note):
    """Start a process in its own session, write a temporary file, and hang in C."""
    child = multiprocessing.get_context("fork").Process(target=_alone)
    child.start()
    _, file = tempfile.mkstemp()
    partial = note.with_suffix(".partial")
    partial.write_text(f"{os.getpid()} {child.pid} {file}")
    partial.replace(note)
    fail_pattern(note)


def _alone():
    os.setsid()
    time.sleep(100)


def values(kind: str):
    """Return a value.

    Args:
        kind: Which one.
    """
    return {"list": [1, {"a": None}], "number": 0.5, "text": "é"}[kind]


def by_position(a: int, /) -> int:
    """Return it.

    Args:
        a: What is returned.
    """
    return a


def draw() -> float:
    """Draw a random number."""
    return random.random()


async def wait(seconds: float) -> str:
    """Wait for some time.

    Args:
        seconds: The time.
    """
    await asyncio.sleep(seconds)
    return "waited"
