"""`rlobj train` and `rlobj serve` as processes that faults are done to, and what came of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import of_tests
from rlobj.base.ports import free_port
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.sessions import read_sessions
from rlobj.settings.presets import merge

os.environ["OMP_NUM_THREADS"] = "1"  # programs are forked from one that has no other threads
# A folder `runs` beside this one would be a module to the type checker.
forked, runs, tiny = map(of_tests, ("forked", "runs", "tiny"))

save_policy, until = tiny.save_tiny_policy, forked.wait_until
KEY = "RLOBJ_API_KEY"


class Trainer:
    """`rlobj train` in a process of its own, with the run's folder and its output.

    Args:
        words: after `rlobj`.
        run: the run's folder.
        variables: added to the environment.
    """

    def __init__(self, words: Sequence[Any], run: Path, variables: Mapping[str, str]) -> None:
        session = len(list(run.parent.glob(f"{run.name}-*.log")))
        self.run, self.log = run, run.with_name(f"{run.name}-{session}.log")
        self.process = runs.program(words, self.log, COLUMNS="400", **variables)

    def done(self) -> int:
        """The last step of metrics.jsonl; -1 before the first line."""
        return max((line["step"] for line in RunFolder(self.run).lines()), default=-1)

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


@dataclass
class Outcome:
    """What one fault did to a run.

    Attributes:
        exit: exit code of the program that was hit; None if it ran on until it was killed here.
        lost: steps that were trained again, or are lost if the run could not be resumed; of several
            runs, a list.
        final: the final weights beside those of the undisturbed run.
        message: what the program said at the fault.
        resumed: what it said when it was resumed and that failed, or a warning.
        more: other numbers.
    """

    exit: int | None = None
    lost: Any = None
    final: str = ""
    message: str = ""
    resumed: str = ""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where faults are tried.

    Attributes:
        folder: of all runs.
        policy: a tiny policy.
        name: of the fault; its folder is named after it.
        server: that the runs sample from; None = they sample themselves.
        waits: settings of `sampling.server`.
    """

    folder: Path
    policy: Path
    name: str = ""
    server: Serving | None = None
    waits: dict[str, float] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """A file or folder of this fault."""
        (self.folder / self.name).mkdir(parents=True, exist_ok=True)
        return self.folder / self.name / name

    def start(self, *words: str, name: str = "run", **sections: Any) -> Trainer:
        """Start a run of eight steps in a new folder; sections override single settings."""
        settings: dict[str, Any] = {}
        if self.server:  # saved by its end or a failure only; sampling takes a second
            server = {"url": self.server.url, **self.waits}
            sizes = {"prompts_per_step": 16, "max_tokens": 48}
            settings = {"sampling": {"engine": "vllm-server", "server": server, **sizes}}
            settings["checkpoint"] = {"every": 50}
        config = tiny.eight_steps(self.policy, **merge(settings, sections))
        file, run = runs.write_config(config, self.path("run.yaml")), self.path(name)
        return self._trainer(run, "train", "--config", file, "--out", run, *words)

    def resume(self, run: Path, *words: str) -> Trainer:
        """Resume a run."""
        return self._trainer(run, "resume", run, *words)

    def _trainer(self, run: Path, *words: Any) -> Trainer:
        return Trainer(words, run, self.server.variables if self.server else {})

    def whole(self) -> Path:
        """The undisturbed run; it is made once."""
        place = replace(self, name="whole-served" if self.server else "whole", waits={})
        run = place.path("run")
        if RunFolder(run).steps_saved() < 8:
            shutil.rmtree(run, ignore_errors=True)
            trainer = place.start()
            assert trainer.end() == 0, f"the undisturbed run: {trainer.message()}"
        return run


Fault = Callable[[Place], Outcome]


def hit(
    place: Place,
    step: int,
    fault: Callable[[Trainer], Any],
    *words: str,
    then: Callable[[Path], Any] = lambda run: None,
    name: str = "run",
) -> Outcome:
    """Do a fault to a run, resume it when it has ended, and compare its final weights.

    Args:
        place: of the run.
        step: that the run has made before.
        fault: what is done.
        words: of the resumption.
        then: is done to the run's folder, or the server, when the run has ended.
        name: of the run's folder.
    """
    whole, trainer = place.whole(), place.start(name=name)
    trainer.wait_for_step(step)
    began = time.monotonic()
    fault(trainer)
    run, outcome = trainer.run, Outcome(trainer.end(), message=trainer.message())
    seconds, saved = time.monotonic() - began, RunFolder(run).steps_saved()
    done, starts = max(0, trainer.done()), len(read_sessions(run))
    outcome.more = {"seconds until it ended": round(seconds, 1)}
    outcome.more |= {"steps done": done, "steps saved": saved}
    then(run)
    again = place.resume(run, *words)
    if (code := again.end()) != 0:
        outcome.lost, outcome.resumed = done, f"exit {code}: {again.message()}"
    else:
        outcome.lost = done - min([done, *(each["step"] for each in read_sessions(run)[starts:])])
        warned = [line for line in again.log.read_text().splitlines() if "WARNING" in line]
        outcome.resumed = " ".join(warned)[:300]
    outcome.final = compared(run, whole)
    return outcome


def compared(run: Path, whole: Path) -> str:
    """The final weights beside those of the undisturbed run, in words."""
    step, last = (RunFolder(each).steps_saved() for each in (run, whole))
    if step != last:
        return f"not finished: saved to step {step} of {last}"
    far = runs.distance(runs.weights(run), runs.weights(whole))
    return f"differ by at most {far:.1e}" if far else "bit-identical"
