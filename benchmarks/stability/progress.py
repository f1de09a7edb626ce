"""How long the study takes, and how far it is."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console
from rich.text import Text

from benchmarks import driver
from benchmarks.stability.plan import Stage, Study
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run

STEP_SECONDS = 0.31
"""Seconds of a rollout with four updates on one core, until runs of this study were measured."""
RUN_MIB = 600
"""Memory of a run, until runs of this study were measured."""


@dataclass(frozen=True)
class Measured:
    """What the runs that ended in a folder needed.

    Attributes:
        runs: their number.
        seconds: of a step, by task and updates per rollout.
        mib: largest resident memory of a run.
    """

    runs: int
    seconds: dict[tuple[str, int], float]
    mib: float

    @classmethod
    def read(cls, runs: Path) -> Measured:
        """Read the `done` files of a study."""
        each: dict[tuple[str, int], list[float]] = {}
        peaks: list[float] = []
        for done in runs.glob(f"*/*/*/{driver.DONE}"):
            setting = Setting.named(done.parents[2].name)
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                facts = json.loads(done.read_text(encoding="utf-8"))
                if setting is not None:
                    seconds = facts["wall_seconds"] / setting.steps
                    each.setdefault(_kind(setting), []).append(seconds)
                    peaks.append(facts["peak_mib"])
        count = sum(map(len, each.values()))
        return cls(count, {k: mean(v) for k, v in each.items()}, max(peaks, default=RUN_MIB))

    def of(self, setting: Setting) -> float:
        """Seconds that a run in a setting takes."""
        usual = mean(self.seconds.values()) if self.seconds else STEP_SECONDS
        return setting.steps * self.seconds.get(_kind(setting), usual)


def _kind(setting: Setting) -> tuple[str, int]:
    return setting.task, setting.updates


@dataclass(frozen=True)
class Machine:
    """What a machine has for runs.

    Attributes:
        cores: that this process may use.
        mib: free memory.
    """

    cores: int
    mib: float

    @classmethod
    def here(cls) -> Machine:
        """This machine, within the limits of its control group."""
        free, cores = psutil.virtual_memory().available, len(os.sched_getaffinity(0))
        group = Path("/sys/fs/cgroup")
        with contextlib.suppress(OSError, ValueError):
            cache = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
            used = int((group / "memory.current").read_text()) - int(cache[1] if cache else 0)
            free = min(free, int((group / "memory.max").read_text()) - used)
        with contextlib.suppress(OSError, ValueError):
            quota, period = map(int, (group / "cpu.max").read_text().split())
            cores = max(1, min(cores, quota // period))
        return cls(cores, free / 2**20)

    def jobs(self, mib: float) -> int:
        """Runs at one time: one a core, and as many as the memory has room for."""
        return max(1, min(self.cores, int(self.mib // mib)))


def remaining(study: Study, stages: Sequence[Stage], measured: Measured) -> tuple[int, float]:
    """How many runs did not end, and their seconds together on one core."""
    count, seconds = 0, 0.0
    usual = measured.of(Setting(0.0, task=study.asked.task, steps=1))
    for stage in stages:
        left = [run for run in stage.runs if study.outcome(run) is None]
        count += len(left) if stage.runs else stage.count
        seconds += sum(measured.of(run.setting) for run in left)
        seconds += 0.0 if stage.runs else usual * stage.steps
    return count, seconds


def estimate(
    left: tuple[int, float], total: int, measured: Measured, machine: Machine, jobs: int
) -> str:
    """How long the study takes, before it starts.

    Args:
        left: runs that did not end, and their seconds together.
        total: number of runs of the study.
        measured: by earlier runs of this folder.
        machine: cores and memory.
        jobs: runs at one time.
    """
    count, seconds = left
    if not count:
        return f"All {total} runs ended."
    share = seconds / min(jobs, machine.cores, count)
    source = (
        f"as its {measured.runs} finished runs"
        if measured.runs
        else "a guess from another machine, until runs have ended"
    )
    lines = [
        f"{count} of {total} runs are to train, {seconds / count:.0f} s each ({source}).",
        f"{jobs} at one time on {machine.cores} cores: {duration(share)}.",
    ]
    possible = machine.jobs(measured.mib)
    if machine.cores > possible:
        lines.append(
            f"The free memory, {machine.mib / 1024:.1f} GiB, has room for {possible} at one time, "
            f"each with {measured.mib / 1024:.1f} GiB."
        )
    if jobs > possible:
        lines.append(
            f"More than {possible} at one time do not end earlier, and may end for lack of memory: "
            f"--jobs {possible}"
        )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, such as 1:02:03."""
    return str(timedelta(seconds=round(seconds)))


class Lines:
    """Prints a line for each run of a study that starts or ends.

    Args:
        study: its runs.
        console: where the lines go.
        jobs: runs at one time.
        stages: all stages of the study.
    """

    def __init__(self, study: Study, console: Console, jobs: int, stages: Sequence[Stage]) -> None:
        self._study, self._console, self._stages = study, console, stages
        self._jobs = min(jobs, Machine.here().cores)
        self._lock = threading.Lock()

    def tell(self, run: Run, state: str) -> None:
        """A run starts or ends."""
        with self._lock:
            style = None
            text = f"{run.setting} {run.condition} {run.seed}: {state}"
            if state.startswith("stopped"):
                text += "; it starts again"
            elif state == driver.DONE and (end := self._study.outcome(run)) is not None:
                count, seconds = remaining(
                    self._study, self._stages, Measured.read(self._study.runs)
                )
                left = duration(seconds / max(min(self._jobs, count), 1))
                text += f", last accuracy {end.last:.3f}; {count} to go, {left} left"
            elif state != "running":
                out = run.folder(self._study.runs)
                text += f"\n{driver.last_lines(out)}    log: {out / driver.LOG}"
                style = "red"
            self._console.print(Text(text), style=style, soft_wrap=True)
