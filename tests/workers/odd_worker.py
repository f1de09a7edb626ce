"""A worker that does all that a worker may do; it answers with pairs, as graders do."""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time


class Odd:
    opening = "odd"

    def answer(self, how, *arguments):
        return getattr(self, how)(*arguments)

    def echo(self, value):
        return value

    def noted(self, note, how):
        with note.open("a") as file:
            file.write("x")
        return self.answer(how)

    def once(self, note, how):
        if note.exists():
            return [2, "again"]
        note.touch()
        return self.answer(how)

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

    def prints(self):
        for stream in (sys.stdout, sys.stderr):
            for _ in range(2_000):
                print("y" * 10_000, file=stream)
        os.write(1, b"not through Python")
        return "printed"

    def children_that_end(self):
        """Children can be ended: they inherit no signal that is ignored."""
        child = subprocess.Popen(["sleep", "1000"])
        child.terminate()
        return child.wait()

    def leave(self, note):
        """Start a process in its own session, write a temporary file, and hang in C."""
        child = multiprocessing.get_context("fork").Process(target=_alone)
        child.start()
        _, file = tempfile.mkstemp()
        note.with_suffix(".partial").write_text(f"{os.getpid()} {child.pid} {file}")
        note.with_suffix(".partial").replace(note)
        self.pattern()

    def _burn(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass


class Unmade:
    def __init__(self):
        raise ValueError("no such thing")


class Dies:
    def __init__(self):
        os._exit(1)


def _alone():
    with contextlib.suppress(OSError):
        os.setsid()
    time.sleep(100)
