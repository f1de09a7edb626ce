"""How long the study takes, and how far it is: a table on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean

import psutil
from rich.console import Console
from rich.live import Live
from rich.table import Table
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
        seconds: of a step, by setting without its learning rate and length.
        mib: largest resident memory of a run.
    """

    runs: int
    seconds: dict[tuple[str, int, str], float]
    mib: float

    @classmethod
    def read(cls, runs: Path) -> Measured:
        """Read the `done` files of a study."""
        each: dict[tuple[str, int, str], list[float]] = {}
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


def _kind(setting: Setting) -> tuple[str, int, str]:
    return setting.task, setting.updates, setting.policy


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
    usual = measured.of(Setting(0.0, task=study.asked.task, policy=study.asked.policy, steps=1))
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


class Board:
    """Shows how far the study is.

    Args:
        study: its runs.
        console: a terminal, which gets a table, or a file, which gets a line for each run.
        jobs: runs at one time.
    """

    def __init__(self, study: Study, console: Console, jobs: int) -> None:
        self._study, self._console = study, console
        self._jobs = min(jobs, Machine.here().cores)
        self._running: dict[Run, float] = {}
        self._lock = threading.Lock()
        self._measured = Measured.read(study.runs)
        self._stages: Sequence[Stage] = []
        self._stage: Stage | None = None

    @contextlib.contextmanager
    def showing(self, stages: Sequence[Stage], stage: Stage) -> Iterator[None]:
        """Show a stage while its runs are trained."""
        self._stages, self._stage = stages, stage
        if not self._console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self.table,
            console=self._console,
            refresh_per_second=1,
            transient=True,
        ):
            yield

    def tell(self, run: Run, state: str) -> None:
        """A run starts or ends."""
        with self._lock:
            if state == "running":
                self._running[run] = time.monotonic()
                if not self._console.is_terminal:
                    text = f"{run.setting} {run.condition} {run.seed}: started"
                    self._console.print(Text(text), soft_wrap=True)
                return
            self._running.pop(run, None)
            if state == driver.DONE:
                self._measured = Measured.read(self._study.runs)
            end = self._study.outcome(run)
            name = f"{run.setting} {run.condition} {run.seed}: {state}"
            if state.startswith("stopped"):
                self._console.print(Text(f"{name}; it starts again"), soft_wrap=True)
            elif state != driver.DONE:
                out = run.folder(self._study.runs)
                text = f"{name}\n{driver.last_lines(out)}    log: {out / driver.LOG}"
                self._console.print(Text(text), style="red", soft_wrap=True)
            elif not self._console.is_terminal and end is not None:
                count, left = self._left()
                text = f"{name}, last accuracy {end.last:.3f}; {count} to go, {duration(left)} left"
                self._console.print(Text(text), soft_wrap=True)

    def _left(self) -> tuple[int, float]:
        """Runs that did not end, and seconds until the end of the study."""
        count, seconds = remaining(self._study, self._stages, self._measured)
        gone = sum(time.monotonic() - began for began in self._running.values())
        return count, max(seconds - gone, 0.0) / max(min(self._jobs, count), 1)

    def table(self) -> Table:
        """The stage in progress by setting and condition, and the other stages in one row each."""
        with self._lock:
            return self.table_of(self._stages, [self._stage])

    def table_of(
        self, stages: Sequence[Stage], detailed: Sequence[Stage | None] | None = None
    ) -> Table:
        """Stages, of which some, or all, are shown by setting and condition."""
        self._stages = stages
        count, left = self._left()
        table = Table(padding=0)
        table.caption = f"{count} runs to go, {duration(left)} left" if count else None
        table.add_column("setting", min_width=18)
        table.add_column("condition", min_width=10)
        for title in ("done", "failed", "now", "last", "degraded", "left"):
            table.add_column(title, justify="right", no_wrap=True)
        for stage in stages:
            if not stage.runs or (detailed is not None and stage not in detailed):
                table.add_row(stage.title, f"{stage.count} runs", *self._cells(stage.runs))
                continue
            rows: dict[tuple[str, str], list[Run]] = {}
            for run in stage.runs:
                name = f"{stage.title}: {self._label(run.setting)}", run.condition
                rows.setdefault(name, []).append(run)
            for name, runs in rows.items():
                table.add_row(*name, *self._cells(runs))
        return table

    def _label(self, setting: Setting) -> str:
        """A setting in few words: its learning rate, and what differs from the search."""
        usual = self._study.asked
        words = [f"rate {setting.learning_rate:g}"]
        words += [setting.task] if setting.task != usual.task else []
        words += [f"{setting.updates} updates"] if setting.updates != Setting.updates else []
        words += [f"{setting.steps} steps"] if setting.steps != usual.steps else []
        return ", ".join(words)

    def _cells(self, runs: Sequence[Run]) -> list[str]:
        if not runs:
            return []
        ends = [end for run in runs if (end := self._study.outcome(run)) is not None]
        failed = sum(end.failed for end in ends)
        missing = [run for run in runs if self._study.outcome(run) is None]
        seconds = sum(self._measured.of(run.setting) for run in missing) / self._jobs
        return [
            f"{len(ends) - failed}/{len(runs)}",
            str(failed or ""),
            str(sum(run in self._running for run in runs) or ""),
            f"{mean(end.last for end in ends):.3f}" if ends else "",
            f"{sum(end.degraded for end in ends)}/{len(ends)}" if ends else "",
            duration(seconds) if missing else "",
        ]
