"""`rlobj serve` as a user runs it, and the processes that belong to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from forked import wait_until

from rlobj.base.ports import free_port

READY = 300
"""Seconds for a server to start on a busy machine."""


def _obey_ctrl_c() -> None:
    """Tests may run in the background of a shell, where SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Served:
    """`rlobj serve` as a user runs it, and the model that it serves."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.port, self.output, self.folder = free_port(), output, folder
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable,
            "-m",
            "rlobj_cli",
            "serve",
            str(folder),
            "--port",
            str(self.port),
        ]
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--set", f"kv_cache_memory_bytes={64 << 20}"],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_obey_ctrl_c,
            )

    def await_text(self, text: str) -> None:
        wait_until(lambda: text in self.screen() or self.process.poll() is not None, READY)
        assert text in self.screen()

    def screen(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def server_processes(self) -> list[int]:
        """vLLM's: they are in a session of their own, which its first process leads."""
        mark = f"--port={self.port}"
        first = [pid for pid in pids() if mark in command_line(pid)]
        return [pid for pid in pids() if first and session(pid) == session(first[0])]

    def end(self) -> None:
        running = self.server_processes()
        for pid in (self.process.pid, *running):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()


def pids() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def session(pid: int) -> int | None:
    """The session of a process that runs; None of one that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[3])


def gone(running: list[int]) -> bool:
    return all(session(pid) is None for pid in running)
