"""Many runs, some at one time: each in a process of its own with one thread, and made once.

The folder of a run that ended has `done`, JSON with what the run returned and its seconds, or
`failed`, how its process ended. A run that was stopped with the whole program has neither, and the
next `make` starts it from its beginning. If the program dies, its runs end.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from benchmarks.harness import commit, note
from rlobj.base import files

DONE, FAILED, LOG = "done", "failed", "log"
IMPORTS = ("transformers.models.qwen3.modeling_qwen3", "rlobj.training.loop.running")
"""What every run imports; the process that starts the runs has it loaded."""
_LOST = 255
"""The exit status that multiprocessing reports if the process that forks the runs was killed."""


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        out: its folder.
        work: makes the folder and returns facts for `done`; it and its arguments can be pickled.
        keep: files of the folder that stay; none = all. The log of a failed run stays always.
    """

    out: Path
    work: Callable[[Path], Mapping[str, Any]]
    keep: Sequence[str] = ()


Tell = Callable[[int, str], None]
"""Gets the number of a job, and "running", "done", "failed: ..." or "stopped: ...", for a run that
did not end and has no mark; from several threads."""


def ended(out: Path) -> str:
    """ "done", "failed", or "" for a run that did not end."""
    return next((name for name in (DONE, FAILED) if (out / name).exists()), "")


def last_lines(out: Path, count: int = 4) -> str:
    """The end of the log of a run, indented; "" without one."""
    log = out / LOG
    lines = files.last_lines(log)[-count:] if log.exists() else []
    return "".join(f"    {line}\n" for line in lines)


def make(jobs: Iterable[Job], at_once: int, tell: Tell, *, preload: Sequence[str] = ()) -> None:
    """Make the runs that did not end.

    Args:
        jobs: the runs; the first ones start first.
        at_once: runs at one time.
        tell: is told of each run that starts or ends.
        preload: modules that the process that starts the runs imports once.

    Raises:
        KeyboardInterrupt: Ctrl-C; the runs in progress were stopped and are not counted.
    """
    jobs = list(jobs)
    if len({job.out for job in jobs}) < len(jobs):
        raise ValueError("two jobs have the same folder")
    missing = []
    for number, job in enumerate(jobs):
        if not ended(job.out):
            missing.append((number, job))
        elif job.out.with_name(f"{job.out.name}.log").exists():  # the program died just after it
            _tidy(job, ended(job.out))
    if not missing:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    crew, version = _Crew(context, tell), commit()

    def one(place: int) -> None:
        number, job = missing[place]
        crew.run(number, job, (job, version))

    with ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(one, place) for place in range(len(missing))]
        try:
            for future in futures:
                future.result()
        except BaseException:
            crew.stop()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def make_study(jobs: Sequence[Job], at_once: int = 1) -> None:
    """Make the runs that are not done, and show on stderr how each ends; failed ones start again.

    Args:
        jobs: the runs; each trains the embedded policy.
        at_once: runs at one time.
    """
    began = time.monotonic()
    for job in jobs:
        (job.out / FAILED).unlink(missing_ok=True)

    def tell(number: int, state: str) -> None:
        if state != "running":
            out = jobs[number].out
            run = f"{out.parent.name}/{out.name}: {state}\n{last_lines(out)}"
            note(f"{time.monotonic() - began:6.0f} s  {run}".rstrip())

    make(jobs, at_once, tell, preload=IMPORTS)


class _Crew:
    """The processes of the runs in progress."""

    def __init__(self, context: Any, tell: Tell) -> None:
        self._context, self._tell = context, tell
        self._running: list[Any] = []
        self._stopped, self._lock = False, threading.Lock()

    def run(self, number: int, job: Job, arguments: tuple[Any, ...]) -> None:
        """Start a run, wait for its end, and write how it ended."""
        with self._lock:
            if self._stopped:
                return
            process = self._context.Process(target=_work, args=arguments)
            process.start()
            self._running.append(process)
        self._tell(number, "running")
        process.join()
        with self._lock:
            self._running.remove(process)
            if self._stopped:
                return
        if process.exitcode == _LOST and not ended(job.out):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            self._tell(number, "stopped: the process that starts the runs ended")
            return
        state = DONE if ended(job.out) == DONE else f"{FAILED}: {_how(process.exitcode)}"
        _tidy(job, state)
        self._tell(number, state)

    def stop(self) -> None:
        """Kill the runs in progress, and start no others."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()


def _how(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit status {code}"
    name = signal.Signals(-code).name
    memory = ", which the system sends if memory is short" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{memory}"


def _work(job: Job, version: str) -> None:
    """Make a run in this process, whose output goes to the run's log."""
    os.setsid()  # Ctrl-C reaches the parent, which decides
    end_with_parent()
    shutil.rmtree(job.out, ignore_errors=True)
    job.out.parent.mkdir(parents=True, exist_ok=True)
    with job.out.with_name(f"{job.out.name}.log").open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    cpu, wall = time.process_time(), time.monotonic()
    try:
        facts = dict(job.work(job.out))
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    facts |= {
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "wall_seconds": round(time.monotonic() - wall, 1),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "commit": version,
    }
    files.write_whole(job.out / DONE, json.dumps(facts, indent=1).encode())


def end_with_parent() -> None:
    """End this process, which multiprocessing started, when the one that started it dies."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _tidy(job: Job, state: str) -> None:
    """Keep the files of a run that are read later."""
    out, keep = job.out, {*job.keep, DONE}
    out.mkdir(parents=True, exist_ok=True)
    log = out.with_name(f"{out.name}.log")
    if log.exists():
        log.replace(out / LOG)
    if state != DONE:
        keep |= {FAILED, LOG}
    for entry in out.iterdir():
        if job.keep and entry.name not in keep:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    if state != DONE:
        files.write_whole(out / FAILED, state.removeprefix(f"{FAILED}: ").encode())
