"""Start several processes of one program on this machine, as `rlobj train --processes K` does.

`torchrun` and other launchers that set its variables work as well. They are not used here because,
as tried with torch 2.13,

- after SIGTERM or Ctrl-C torchrun ends with exit code 1 and a traceback, even if every process
  ended well; it kills processes after 30 seconds, in the middle of a checkpoint; and if it is
  killed itself, its processes keep running;
- `torch.distributed.elastic.multiprocessing` can wait longer, but it also signals what the
  processes have started (a vLLM engine, workers that check answers), and at the first failure it
  ends all others at once: often the one whose traceback is the cause.
"""

import contextlib
import ctypes
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rlobj.base.addresses import free_port
from rlobj.base.errors import Argument, ConfigError
from rlobj.base.files import last_lines
from rlobj.base.launched import COMMAND, command_line
from rlobj.base.processes import ending

GRACE = 10.0
"""Seconds after the first failure in which the other ranks may end, before they are killed."""
POLL = 0.05
"""Seconds between two looks at the processes."""
SHOWN_LINES = 30
"""Lines of a failed rank's output in the report."""

_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def launch(
    arguments: Sequence[str],
    processes: int,
    log_dir: Path | None = None,
    *,
    program: Sequence[str] = (sys.executable, "-P", "-m", "rlobj_cli"),
) -> int:
    """Start a program in several processes, the ranks of one process group, and wait for them.

    Rank 0 uses this terminal; the output of every other rank goes to a file. SIGTERM and SIGINT are
    passed on to every rank once, and then the ranks have unlimited time to end. A second signal
    kills them. After a rank has failed, the others are killed `GRACE` seconds later. A report on
    stderr says how each rank ended, and shows the end of the output of those that failed. On Linux
    no rank keeps running when this process ends. Call it from the main thread.

    Args:
        arguments: of the program, which launches nothing where WORLD_SIZE is set.
        processes: how many ranks, at least 1.
        log_dir: folder, which is there, for `rank-1.log` and so on. Default: a new temporary
            folder, which is removed if no rank fails.
        program: the command that is started. With `-P`, modules in the current folder, which may be
            the run of somebody else, are not imported in place of installed ones.

    Returns:
        0 if every rank ended with 0. After a failure, the largest exit code of the ranks that
        failed, or 1 if signals ended them. 128 + the signal's number if the ranks ended from the
        signal that was passed on.

    Raises:
        ConfigError: fewer than 1 process, or a launcher has started this process already.
    """
    if processes < 1:
        raise ConfigError(Argument("processes", processes), ": expected at least 1")
    if (world := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ConfigError(
            Argument("processes", processes),
            f", but WORLD_SIZE is {world}: a launcher has started the processes. Leave out one.",
        )
    with contextlib.ExitStack() as stack:
        folder = log_dir or Path(tempfile.mkdtemp(prefix="rlobj-"))
        if log_dir is None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        ranks, arrived = _run([*program, *arguments], processes, folder)
        failed = [rank for rank in ranks if rank.failed()]
        if not failed:
            return 128 + arrived[0] if any(rank.returncode for rank in ranks) else 0
        sys.stderr.write(_report(failed, ranks))
        stack.pop_all()  # the report names the logs
    return max(1, *(rank.returncode for rank in failed))


def _run(command: Sequence[str], processes: int, folder: Path) -> "tuple[list[_Rank], list[int]]":
    """Start the ranks and wait for them; also the signals that arrived."""
    ranks: list[_Rank] = []
    with _caught(signal.SIGTERM, signal.SIGINT) as arrived:
        try:
            for number, environment in enumerate(_environments(processes)):
                log = folder / f"rank-{number}.log" if number else None
                ranks.append(_Rank(command, environment, log))
            _wait(ranks, arrived)
        finally:
            for rank in ranks:
                rank.end()
    return ranks, arrived


class _Rank(subprocess.Popen[bytes]):
    """A process in a session of its own, so that the terminal does not send Ctrl-C to it.

    Args:
        command: the program and its arguments.
        environment: its environment.
        log: the file of its output; None = the terminal.
    """

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], log: Path | None
    ) -> None:
        self.log = log
        self._sent: set[int] = set()
        end_with_parent = None
        if sys.platform == "linux":
            end_with_parent = partial(ctypes.CDLL(None).prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.nullcontext() if log is None else log.open("wb") as output:
            super().__init__(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=None if output is None else subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def send(self, number: int) -> None:
        """Send a signal to it, and not to the processes that it started."""
        if self.poll() is None:
            self._sent.add(number)
            self.send_signal(number)

    def end(self) -> None:
        """Kill it, and the processes that it started, unless it ended well."""
        self.send(signal.SIGKILL)
        if self.wait() != 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def failed(self) -> bool:
        """Whether it failed, and not because of a signal from here."""
        return self.returncode not in {0, *(code for n in self._sent for code in (-n, 128 + n))}


def _environments(processes: int) -> Iterator[dict[str, str]]:
    """The environment of each rank: torchrun's variables, with a free port of this machine."""
    port = free_port()
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    # Under torchrun, the ranks would wait for a store that its agent opens.
    inherited = {
        key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")
    }
    for rank in range(processes):
        yield {
            "OMP_NUM_THREADS": str(max(1, cores // processes)),
            **inherited,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            COMMAND: command_line(),
            "PYTHONUNBUFFERED": "1",
            "PYTHONFAULTHANDLER": "1",  # a crash in compiled code shows where
        }


@contextlib.contextmanager
def _caught(*numbers: signal.Signals) -> Iterator[list[int]]:
    """Collect these signals in a list, without any other effect. Ignored signals stay ignored."""
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


def _wait(ranks: Sequence[_Rank], arrived: Sequence[int]) -> None:
    """Wait until all ranks have ended or are to be killed; pass a signal on, as in `launch`."""
    passed_on, deadline = False, math.inf
    while [rank for rank in ranks if rank.poll() is None]:
        if len(arrived) > 1 or time.monotonic() > deadline:
            return
        if arrived and not passed_on:
            passed_on = True
            for rank in ranks:
                rank.send(arrived[0])
        if any(rank.returncode for rank in ranks):
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)


def _report(failed: Sequence[_Rank], ranks: Sequence[_Rank]) -> str:
    """How each rank ended, and the end of the output of those that failed."""
    cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a killed screen leaves the cursor hidden
    lines = [f"{cursor}\n{len(failed)} of {len(ranks)} processes failed:"]
    lines += [f"rank {number}: {ending(rank.returncode)}" for number, rank in enumerate(ranks)]
    for log in [rank.log for rank in failed if rank.log is not None]:
        lines += ["", f"The end of {log}:", "", *last_lines(log)[-SHOWN_LINES:]]
    return "\n".join(lines) + "\n"
