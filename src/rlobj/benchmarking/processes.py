"""Measurements in processes of their own: CPU seconds at one thread, and peak memory.

A fresh process is what makes peak memory mean something, and CPU seconds of one thread are what
other work on the machine changes least.

    with kept_answers(file):        what was answered before is not measured again
        ask(module, question)
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from rlobj.base.errors import RunError

__all__ = [
    "ask",
    "keep_freed_memory",
    "kept_answers",
    "peak_above",
    "peak_mib",
    "return_freed_memory",
]


class _Answers:
    """A file with a line for each answer; each is used once, in the order they were given."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known: dict[str, list[Any]] = {}
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the process ended while a line was written
            file.write_text(whole, encoding="utf-8")
        for line in whole.splitlines():
            found = json.loads(line)
            self.known.setdefault(found["asked"], []).append(found["answer"])

    def add(self, asked: str, answer: Any) -> None:
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"asked": asked, "answer": answer}) + "\n")


_kept: ContextVar[_Answers | None] = ContextVar("kept", default=None)


@contextmanager
def kept_answers(file: Path) -> Iterator[None]:
    """Within, each answer is added to a file at once, and answers that it holds are taken from it.

    A question that is asked k times in one run takes k answers.
    """
    token = _kept.set(_Answers(file))
    try:
        yield
    finally:
        _kept.reset(token)


def ask(
    module: str,
    question: Mapping[str, Any],
    *,
    environment: Mapping[str, str] | None = None,
    launcher: Sequence[str] = (sys.executable,),
) -> Any:
    """What `python -m module '{question}'` answers, in a fresh process at one thread.

    The process prints its answer as one line of JSON, the last on its standard output.

    Args:
        module: the name of a module that answers.
        question: its only argument, as JSON.
        environment: variables on top of this process's.
        launcher: what starts the module; the interpreter, perhaps with a launcher of ranks.

    Raises:
        RunError: the process failed; with the end of what it said.
    """
    kept = _kept.get()
    variables = dict(environment or {})
    asked = json.dumps([module, question, variables, launcher[1:]], sort_keys=True)
    if kept and kept.known.get(asked):
        return kept.known[asked].pop(0)
    done = subprocess.run(
        [*launcher, "-m", module, json.dumps(question)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
    )
    if done.returncode:
        said = done.stderr[-2000:] or done.stdout[-2000:]
        raise RunError(f"measuring {json.dumps(question)} with {module} failed:\n{said}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if kept:
        kept.add(asked, answer)
    return answer


def return_freed_memory() -> None:
    """From here on each large buffer is mapped by itself, so that what is freed is gone at once."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 1 << 16)
    libc.malloc_trim(0)


def peak_mib(reset: bool = False) -> float:
    """Largest resident size of this process in MiB, since the last reset (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) / 1024


def peak_above(work: Callable[[], Any]) -> float:
    """MiB that a piece of work needs at most, above what lay in memory before it.

    Call `return_freed_memory` first of all, since what is freed and kept hides a peak.
    """
    before = peak_mib(reset=True)
    work()
    return peak_mib() - before


def keep_freed_memory() -> None:
    """Undo `return_freed_memory`, to measure time: what is freed is used again."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 32 << 20)  # the limits that glibc's own rule arrives at
    libc.mallopt(-1, 64 << 20)
