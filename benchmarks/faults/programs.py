"""`rlobj train` and `rlobj serve` as processes that faults are done to, and what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from safetensors.torch import load_file

from benchmarks.harness import ROOT
from rlobj.base.ports import free_port
from rlobj.config.run_folder import checkpoints
from rlobj.models.embedded import build_policy, build_tokenizer

os.environ["OMP_NUM_THREADS"] = "1"  # programs are forked from one that has no other threads
sys.path.append(str(ROOT / "tests"))
from forked import Forked  # pyright: ignore[reportMissingImports]

READY = 600.0
"""Most seconds for a server to start."""
TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl, more than two lines."""
KEY = "RLOBJ_API_KEY"


class NotSeen(Exception):
    """What a fault waits for did not happen."""


def until(condition: Callable[[], Any], seconds: float, what: str, pause: float = 0.01) -> Any:
    """Wait for a condition, and return what it returned.

    Raises:
        NotSeen: it is not true after these seconds.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise NotSeen(what)
        time.sleep(pause)
    return found


def save_policy(folder: Path) -> Path:
    """A policy with random weights, as a Hugging Face folder."""
    if not (folder / "config.json").exists():
        build_policy(0).save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
    return folder


def write_config(file: Path, policy: Path, **sections: Mapping[str, Any]) -> Path:
    """A configuration of a tiny run; sections override single settings."""
    settings: dict[str, Any] = {
        "preset": "stapo",
        "model": {"name": str(policy)},
        "data": {"source": "max-digits"},
        "rewards": {"kind": "exact"},
        "sampling": {"prompts_per_step": 32, "group_size": 8, "max_tokens": 1},
        "training": {"steps": 8, "learning_rate": 2e-3, "schedule": "constant"},
        "checkpoint": {"every": 3, "best": False},
        "evaluation": {"every": 4, "samples": 1, "problems": 16},
        "output": {"tables_every": 0},
    }
    for name, section in sections.items():
        settings[name] = {**settings.get(name, {}), **section}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return file


class Trainer:
    """`rlobj train` in a process of its own, with the run's folder and its output.

    Args:
        words: after `rlobj train`.
        run: the run's folder.
        variables: added to the environment; None removes one.
    """

    def __init__(self, words: Sequence[str | Path], run: Path, **variables: str | None) -> None:
        session = len(list(run.parent.glob(f"{run.name}-*.log")))
        self.run, self.log = run, run.with_name(f"{run.name}-{session}.log")
        given = {**os.environ, "COLUMNS": "400", **variables}
        kept = {name: value for name, value in given.items() if value is not None}
        with self.log.open("w") as file:
            self.process = Forked(["-m", "rlobj_cli", "train", *words], file, env=kept)

    def wait_for_step(self, step: int, seconds: float = 600) -> None:
        """Wait until metrics.jsonl has a step.

        Raises:
            NotSeen: it ended before, or is not so far after these seconds.
        """
        until(lambda: steps_done(self.run) >= step or self._ended(), seconds, f"step {step}")
        if steps_done(self.run) < step:
            raise NotSeen(f"step {step}: {self.message()}")

    def _ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, seconds: float = 600) -> int | None:
        """Wait for its end; the exit code, or None if it runs on and was killed here."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(seconds)
        kill_tree(self.process.pid)
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
    """`rlobj serve` in a process of its own.

    Args:
        policy: the model's folder.
        log: file of its output.
        key: of the server; None = it makes one.
    """

    def __init__(self, policy: Path, log: Path, key: str | None) -> None:
        self.policy, self.log, self.key = policy, log, key
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.started = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, again on the same port."""
        self.started += 1
        given = {name: value for name, value in os.environ.items() if name != KEY}
        given |= {"COLUMNS": "400"} | ({KEY: self.key} if self.key else {})
        words = [sys.executable, "-m", "rlobj_cli", "serve", str(self.policy)]
        words += ["--port", str(self.port), "--set", f"kv_cache_memory_bytes={64 << 20}"]
        with self.log.open("ab") as file:
            self.process = subprocess.Popen(
                words,
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=given,
                start_new_session=True,
            )

    def wait_until_ready(self) -> float:
        """Seconds until it said that it is ready as often as it was started."""
        began = time.monotonic()
        until(lambda: self._said_ready() or self.ended(), READY, "a server", pause=0.1)
        if not self._said_ready():
            raise NotSeen(f"the server ended: {self.log.read_text(errors='replace')[-2000:]}")
        return time.monotonic() - began

    def _said_ready(self) -> bool:
        return self.log.read_text(errors="replace").count("Ready after") >= self.started

    def engine_log(self) -> str:
        """What vLLM has written since this server was started first."""
        found = re.findall(r"its log is (\S+)", self.log.read_text(errors="replace"))
        return Path(found[-1]).read_text(errors="replace") if found else ""

    def ended(self) -> bool:
        """Whether `rlobj serve` itself has ended."""
        return self.process is None or self.process.poll() is not None

    def engine(self) -> list[psutil.Process]:
        """The processes of vLLM, the first one first."""
        mark = f"--port={self.port}"
        for process in psutil.process_iter(["cmdline"]):
            if mark in (process.info["cmdline"] or []):
                return [process, *process.children(recursive=True)]
        return []

    def processes(self) -> list[psutil.Process]:
        """All of its processes."""
        with contextlib.suppress(psutil.Error):
            if self.process is not None and not self.ended():
                return [psutil.Process(self.process.pid), *self.engine()]
        return self.engine()

    def kill_engine(self) -> None:
        """What the system's out-of-memory killer does: SIGKILL to vLLM's processes only."""
        _kill(self.engine())

    def kill(self) -> None:
        """SIGKILL to all of its processes, as if the machine were lost."""
        _kill(self.processes())
        if self.process is not None:
            self.process.wait()
        _kill(self.engine())

    def signal(self, number: int) -> None:
        """A signal to all of vLLM's processes."""
        for process in self.engine():
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)

    def restart(self) -> float:
        """Kill it, start it again; seconds until it is ready."""
        self.kill()
        self.start()
        return self.wait_until_ready()


def _kill(processes: Iterable[psutil.Process]) -> None:
    listed = list(processes)
    for process in listed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(listed, timeout=20)


def kill_tree(pid: int) -> None:
    """SIGKILL to a process and all below it."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        _kill([process, *process.children(recursive=True)])


# What a run left.


def steps_done(run: Path) -> int:
    """The last step of metrics.jsonl, of which the end is read; -1 before the first line."""
    with contextlib.suppress(OSError, ValueError), (run / "metrics.jsonl").open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return json.loads(whole)["step"]
    return -1


def resumed_from(run: Path) -> list[int]:
    """The step after which each start of the run went on."""
    file = run / "sessions.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines]


def weights(run: Path) -> tuple[int, dict[str, torch.Tensor]]:
    """The step and the tensors of the newest checkpoint."""
    saved = checkpoints(run)
    if not saved:
        return 0, {}
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted((saved[-1] / "model").glob("*.safetensors")):
        tensors |= load_file(file)
    return int(saved[-1].name.rpartition("-")[2]), tensors


def compared(run: Path, whole: Path) -> str:
    """The final weights beside those of the undisturbed run, in words."""
    (step, mine), (last, theirs) = weights(run), weights(whole)
    if step != last:
        return f"not finished: saved to step {step} of {last}"
    if all(torch.equal(mine[name], tensor) for name, tensor in theirs.items()):
        return "bit-identical"
    far = max(float((mine[name] - tensor).abs().max()) for name, tensor in theirs.items())
    return f"differ by at most {far:.1e}"


def weight_versions(run: Path) -> dict[int, set[int]]:
    """The versions of the weights that sampled each step's rollout."""
    import pyarrow.parquet as parquet

    found = {}
    for file in sorted((run / "samples").glob("step-*.parquet")):
        column = parquet.read_table(file, columns=["weight_version"])["weight_version"]
        found[int(file.stem.rpartition("-")[2])] = set(column.to_pylist())
    return found
