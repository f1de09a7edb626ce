"""Several processes of one program on this machine: what `rlobj train --processes K` does.

`torchrun` starts processes too, and any other launcher that sets its variables works as well. It is
not used here because it ends with exit code 1 and a traceback of its own where every process, asked
to stop, has ended well; kills processes 30 seconds after a signal, in the middle of a checkpoint;
and shows the traceback of a failed process only where the program was written for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlobj.base.errors import ConfigError
from rlobj.base.ports import free_port

__all__ = ["launch"]

SETTLE = 2.0
"""Seconds after the first failure in which others may fail by themselves: a process that only lost
its connection to another can end before the one that is to blame."""
GRACE = 20.0
"""Seconds between SIGTERM and SIGKILL, for the others, once a process has failed."""
POLL = 0.05
"""Seconds between two looks at the processes."""
SHOWN_LINES, SHOWN_TRACEBACK = 30, 200
"""Lines of a failed process's output in the report, and at most where a traceback is longer."""

_LOST_A_PEER = re.compile(
    r"connection (?:was )?(?:likely )?(?:closed|reset|refused|aborted)|broken pipe|socket timeout"
    r"|ncclremoteerror|remote process exited|recvvalue failed|distnetworkerror",
    re.IGNORECASE,
)
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def launch(
    arguments: Sequence[str],
    processes: int,
    log_dir: Path | None = None,
    *,
    program: Sequence[str] = (sys.executable, "-m", "rlobj_cli"),
) -> int:
    """Start the program `processes` times, as the ranks of one process group, and wait for them.

    Rank 0 has this process's terminal, the output of each other rank is a file. SIGTERM and SIGINT
    are passed on to every rank once, and then waited for without a limit; a second one kills. Once
    a rank has failed, the others get SIGTERM and, `GRACE` seconds later, SIGKILL; a report on
    stderr names the one to blame and shows the end of its output. On Linux no rank outlives this
    process. Only the main thread can launch.

    Args:
        arguments: of the program, as typed; `--processes` among them is left out.
        processes: how many ranks, at least 1.
        log_dir: folder for `rank-1.log` and so on; a new temporary one by default, which is
            removed where all ranks ended well.
        program: what is started.

    Returns:
        0 if every rank ended with 0; the exit code of the rank to blame, 1 if a signal ended it;
        128 plus the signal's number where ranks ended of the signal that was passed on.

    Raises:
        ConfigError: fewer than 1 process, or a launcher has started this process already.
    """
    _check(processes)
    folder = log_dir or Path(tempfile.mkdtemp(prefix="rlobj-"))
    folder.mkdir(parents=True, exist_ok=True)
    command = [*program, *_without_processes(arguments)]
    children: list[_Child] = []
    with _caught(signal.SIGTERM, signal.SIGINT) as arrived:
        try:
            for rank, environment in enumerate(_environments(processes)):
                log = folder / f"rank-{rank}.log" if rank else None
                children.append(_start(command, environment, log))
            _wait(children, arrived)
        finally:
            for child in children:
                child.kill()
    if all(child.code == 0 for child in children):
        if log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        return 0
    failed = [child for child in children if child.failed_by_itself]
    if not failed:
        return 128 + arrived[0]
    blamed = _to_blame(failed)
    sys.stderr.write(_report(blamed, children))
    return 1 if blamed.code < 0 else blamed.code


@dataclass(eq=False)
class _Child:
    """A rank: a process with a session of its own, so that a terminal's Ctrl-C passes it by."""

    process: subprocess.Popen[bytes]
    log: Path | None
    sent: set[int] = field(default_factory=set)
    """The signals it got from here."""
    ended: float | None = None
    """When it was seen to have ended, on the monotonic clock."""

    @property
    def code(self) -> int:
        """As of subprocess: negative where a signal ended it. Only after the end."""
        return self.process.returncode

    @property
    def failed_by_itself(self) -> bool:
        """It ended badly, and not of a signal from here."""
        own = {code for number in self.sent for code in (-number, 128 + number)}
        return self.code not in {0, *own}

    def running(self) -> bool:
        """Look whether it still runs; what a failed rank leaves behind is killed."""
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.monotonic()
            if self.code != 0:
                self._kill_group()
        return self.ended is None

    def send(self, number: int) -> None:
        """Send a signal to it, not to the processes that it has started."""
        if self.running():
            self.sent.add(number)
            self.process.send_signal(number)

    def kill(self) -> None:
        """End it, and all that it has started, now."""
        if self.running():
            self.sent.add(signal.SIGKILL)
            self._kill_group()
            self.process.wait()
            self.running()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def only_lost_a_peer(self) -> bool:
        """Whether it may have failed only because another had. Rank 0's words went to the screen:
        where others have failed as well, theirs are the news."""
        if self.code not in (1, -signal.SIGABRT):
            return False
        return self.log is None or _LOST_A_PEER.search(_tail(self.log)) is not None


def _check(processes: int) -> None:
    if processes < 1:
        raise ConfigError(f"--processes {processes}: expected at least 1")
    world = os.environ.get("WORLD_SIZE", "1")
    if world != "1":
        raise ConfigError(
            f"--processes {processes}, but WORLD_SIZE is {world}: torchrun or accelerate launch "
            "has started the processes already. Leave out --processes, or that launcher."
        )


def _without_processes(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments without `--processes K` and `--processes=K`: the ranks are not to launch."""
    rest = iter(arguments)
    for argument in rest:
        if argument == "--processes":
            next(rest, None)
        elif not argument.startswith("--processes="):
            yield argument


def _environments(processes: int) -> Iterator[dict[str, str]]:
    """The variables of each rank: torchrun's, on a free port of this machine."""
    port = free_port()
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC_")
    }
    for rank in range(processes):
        yield {
            "OMP_NUM_THREADS": "1",
            **inherited,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONFAULTHANDLER": "1",  # a crash in compiled code shows where
        }


def _start(command: Sequence[str], environment: dict[str, str], log: Path | None) -> _Child:
    with contextlib.ExitStack() as stack:
        output = None
        if log is not None:
            output = stack.enter_context(log.open("wb"))
            environment = {**environment, "PYTHONUNBUFFERED": "1"}  # a killed rank's last words
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_die_with_this_process(),
        )
    return _Child(process, log)


def _die_with_this_process() -> Callable[[], None] | None:
    """What a new process runs first: it asks Linux for SIGKILL at the end of its parent."""
    if sys.platform != "linux":
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the question
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


@contextlib.contextmanager
def _caught(*numbers: signal.Signals) -> Iterator[list[int]]:
    """The signals that arrive meanwhile and do nothing else; one that is ignored stays ignored."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _frame: arrived.append(got))
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[_Child], arrived: Sequence[int]) -> None:
    """Return once all have ended; see `launch` for what is done to them until then."""
    passed_on = terminated = False
    while [child for child in children if child.running()]:
        ends = [child.ended for child in children if child.ended is not None and child.code != 0]
        failed_for = time.monotonic() - min(ends, default=time.monotonic())
        if len(arrived) > 1 or failed_for > SETTLE + GRACE:
            for child in children:
                child.kill()
        elif arrived and not passed_on:
            passed_on = True
            for child in children:
                child.send(arrived[0])
        elif failed_for > SETTLE and not terminated:
            terminated = True
            for child in children:
                child.send(signal.SIGTERM)
        time.sleep(POLL)


def _to_blame(failed: Sequence[_Child]) -> _Child:
    """The first that failed for a reason of its own; the first of all where none is known to."""
    in_order = sorted(failed, key=lambda child: child.ended or 0.0)
    return next((child for child in in_order if not child.only_lost_a_peer()), in_order[0])


def _report(blamed: _Child, children: Sequence[_Child]) -> str:
    """Who failed, how, its last words, and what became of the others."""
    rank = children.index(blamed)
    shown = "\x1b[?25h" if sys.stderr.isatty() else ""  # a killed screen leaves the cursor hidden
    memory = " (often the system, out of memory)" if blamed.code == -signal.SIGKILL else ""
    how = f"{_how(blamed.code)}{memory}"
    lines = [f"{shown}\nrank {rank} of {len(children)} processes failed: {how}"]
    if blamed.log is None:
        lines.append("Its output is above.")
    else:
        words = _tail(blamed.log) or "(nothing)"
        lines += ["The end of its output:", "", words, "", f"All of it is in {blamed.log}"]
    others = [
        f"{_how(child.code)} (rank {rank})"
        for rank, child in enumerate(children)
        if child is not blamed
    ]
    lines += [f"The others ended with {', '.join(others)}"] if others else []
    return "\n".join(lines) + "\n"


def _how(code: int) -> str:
    """An exit code or the name of a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _tail(log: Path) -> str:
    """The last lines of a file, from the beginning of the last traceback if that is longer."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 1_000_000))
        lines = file.read().decode("utf-8", errors="replace").rstrip().splitlines()
    lines = lines[-SHOWN_TRACEBACK:]
    traces = [at for at, line in enumerate(lines) if line.startswith("Traceback (most recent")]
    start = max(0, len(lines) - SHOWN_LINES)
    return "\n".join(lines[min([start, *traces[-1:]]) :])
