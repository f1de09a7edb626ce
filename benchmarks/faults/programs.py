"""`rlobj train` and `rlobj serve` as processes that faults are done to."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import ROOT
from rlobj.base.ports import free_port

os.environ["OMP_NUM_THREADS"] = "1"  # programs are forked from one that has no other threads
sys.path.append(str(ROOT / "tests"))
import forked  # pyright: ignore[reportMissingImports]
import runs  # pyright: ignore[reportMissingImports]

until = forked.wait_until
KEY = "RLOBJ_API_KEY"
TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl, more than two lines."""


class Trainer:
    """`rlobj train` in a process of its own, with the run's folder and its output.

    Args:
        words: after `rlobj train`.
        run: the run's folder.
        variables: added to the environment.
    """

    def __init__(self, words: Sequence[Any], run: Path, variables: Mapping[str, str]) -> None:
        session = len(list(run.parent.glob(f"{run.name}-*.log")))
        self.run, self.log = run, run.with_name(f"{run.name}-{session}.log")
        self.process = runs.program(["train", *words], self.log, COLUMNS="400", **variables)

    def done(self) -> int:
        """The last step of metrics.jsonl, of which the end is read; -1 before the first line."""
        metrics = self.run / "metrics.jsonl"
        with contextlib.suppress(OSError, ValueError), metrics.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            return json.loads(file.read().rpartition(b"\n")[0].rpartition(b"\n")[2])["step"]
        return -1

    def wait_for_step(self, step: int) -> None:
        """Wait until metrics.jsonl has a step."""
        until(lambda: self.done() >= step, 600, self.process, self.log)

    def kill(self) -> None:
        """SIGKILL to it and all below it."""
        with contextlib.suppress(psutil.Error):
            trainer = psutil.Process(self.process.pid)
            send([trainer, *trainer.children(recursive=True)], signal.SIGKILL)

    def end(self, seconds: float = 900) -> int | None:
        """Wait for its end; the exit code, or None if it runs on and was killed here."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        self.kill()
        return None

    def message(self) -> str:
        """What its output says of its end: the error, or else the last warning."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines()]
        lines = [line for line in lines if line]
        for marks in (("Failed: ", "Wrong input: "), ("Error: ", "rank 1 of"), ("WARNING",)):
            marked = [at for at, line in enumerate(lines) if any(mark in line for mark in marks)]
            if marked:
                return " ".join(lines[marked[-1] : marked[-1] + 2])[:500]
        return " ".join(lines[-2:])[:500]


class Serving:
    """`rlobj serve` in a process of its own, which is ready.

    Args:
        policy: the model's folder.
        folder: of its logs.
        key: of the server; "" = it makes one.
    """

    def __init__(self, policy: Path, folder: Path, key: str) -> None:
        self.policy, self.folder, self.key = policy, folder, key
        self.variables = {KEY: key} if key else {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> float:
        """Start it, again on the same port; seconds until it is ready."""
        began = time.monotonic()
        self.log = self.folder / f"server-{time.time():.0f}.log"
        words = ["serve", self.policy, "--port", self.port]
        words += ["--set", f"kv_cache_memory_bytes={64 << 20}"]
        self.process = runs.program(words, self.log, COLUMNS="400", **self.variables)
        until(lambda: "Ready after" in self.log.read_text(), 600, self.process, self.log)
        return time.monotonic() - began

    def syncs(self) -> int:
        """How often a trainer has paused vLLM to load weights, since this server was started."""
        found = re.findall(r"its log is (\S+)", self.log.read_text(errors="replace"))
        return Path(found[-1]).read_text(errors="replace").count("PAUSED_NEW") if found else 0

    def engine(self) -> list[psutil.Process]:
        """The processes of vLLM, the first one first."""
        mark = f"--port={self.port}"
        for process in psutil.process_iter(["cmdline"]):
            if mark in (process.info["cmdline"] or []):
                return [process, *process.children(recursive=True)]
        return []

    def runs(self) -> bool:
        """Whether its process and those of vLLM run."""
        return self.process.poll() is None and bool(self.engine())

    def kill(self) -> None:
        """SIGKILL to all of its processes, as if the machine were lost."""
        self.process.kill()
        send(self.engine(), signal.SIGKILL)
        self.process.wait()
        send(self.engine(), signal.SIGKILL)

    def restart(self) -> float:
        """Kill it, start it again; seconds until it is ready."""
        self.kill()
        return self.start()


def send(processes: Sequence[psutil.Process], number: int) -> None:
    """A signal to those of the processes that still run; SIGKILL is waited for."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    if number == signal.SIGKILL:
        psutil.wait_procs(processes, timeout=20)
