"""What answers in the worker processes of the tests, and fails in all ways; `how` is the method."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time


class Odd:
    opening = "odd"

    def answer(self, how, *arguments):
        return getattr(self, how)(*arguments)

    def echo(self, value):
        return value

    def raises(self):
        raise KeyError("gone")

    def exit(self):
        os._exit(3)

    def exit_with_child(self):
        if os.fork() == 0:
            time.sleep(60)
        os._exit(3)

    def segfault(self):
        ctypes.string_at(0)

    def pattern(self):
        re.match("(a+)+$", "a" * 60 + "b")

    def fork(self):
        return os.fork()

    def prints(self):
        for stream in (sys.stdout, sys.stderr):
            for _ in range(2_000):
                print("y" * 10_000, file=stream)
        os.write(1, b"not through Python")
        return "printed"

    def close_others(self):
        """Write to, and close, the descriptors that a program may think of."""
        for descriptor in range(256):
            with contextlib.suppress(OSError):
                os.write(descriptor, b'["", "reply", 7]\n')
        os.closerange(3, 256)
        return "closed"

    def write(self, text, count=1):
        for _ in range(count):
            os.write(_connection(), text.encode())
        return "written"

    def flood(self):
        while True:
            os.write(_connection(), b"x" * 65536)

    def write_later(self):
        threading.Timer(0.2, self.write, ['["", "reply", 7]\n']).start()
        return "later"

    def children_that_end(self):
        """Children can be ended: they inherit no signal that is ignored."""
        child = subprocess.Popen(["sleep", "1000"])
        child.terminate()
        fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        fork.start()
        fork.terminate()
        fork.join()
        return [child.wait(), fork.exitcode]

    def detach(self):
        """Start a process in its own session, and return its id."""
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def leave(self, note):
        """Start a process in its own session, write a temporary file, and hang in C."""
        child = multiprocessing.get_context("fork").Process(target=_alone)
        child.start()
        _, file = tempfile.mkstemp()
        note.with_suffix(".partial").write_text(f"{os.getpid()} {child.pid} {file}")
        note.with_suffix(".partial").replace(note)
        self.pattern()


class Unmade:
    def __init__(self):
        raise ValueError("no such thing")


def _alone():
    os.setsid()
    time.sleep(100)


def _connection():
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "socket" in os.readlink(f"/proc/self/fd/{descriptor}"):
                return int(descriptor)
    raise AssertionError("there is none")


class Slow(Odd):
    """Answers with pairs."""

    def prepare(self, how, *arguments):
        if "prepares" in str(arguments):
            self._burn(0.4)

    def noted(self, note, how):
        with note.open("a") as file:
            file.write("x")
        return self.answer(how)

    def once(self, note, how):
        if note.exists():
            return [2, "again"]
        note.touch()
        return self.answer(how)

    def spin(self):
        self._burn(100)

    def hang(self):
        time.sleep(100)

    def stop(self):
        os.kill(os.getpid(), signal.SIGSTOP)

    def memory(self):
        return "x" * (8 << 30)

    def imports(self):
        import nowhere  # noqa: F401  # pyright: ignore[reportMissingImports]

    def _burn(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass


class Dies:
    def __init__(self):
        os._exit(1)
