"""How long the study takes, and how far it is."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.text import Text

from benchmarks import driver
from benchmarks.stability.plan import Stage, Study
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run

STEP_SECONDS = 0.31
"""Seconds of a rollout with four updates on one core, until runs of this study were measured."""


@dataclass(frozen=True)
class Measured:
    """What the runs that ended in a folder needed.

    Attributes:
        runs: their number.
        seconds: of a step, by task and updates per rollout.
    """

    runs: int
    seconds: dict[tuple[str, int], float]

    @classmethod
    def read(cls, runs: Path) -> Measured:
        """Read the `done` files of a study."""
        each: dict[tuple[str, int], list[float]] = {}
        for done in runs.glob(f"*/*/*/{driver.DONE}"):
            setting = Setting.named(done.parents[2].name)
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                facts = json.loads(done.read_text(encoding="utf-8"))
                if setting is not None:
                    seconds = facts["wall_seconds"] / setting.steps
                    each.setdefault((setting.task, setting.updates), []).append(seconds)
        return cls(sum(map(len, each.values())), {kind: mean(x) for kind, x in each.items()})

    def of(self, setting: Setting) -> float:
        """Seconds that a run in a setting takes."""
        usual = mean(self.seconds.values()) if self.seconds else STEP_SECONDS
        return setting.steps * self.seconds.get((setting.task, setting.updates), usual)


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


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


def estimate(left: tuple[int, float], total: int, measured: Measured, jobs: int) -> str:
    """How long the study takes, before it starts.

    Args:
        left: runs that did not end, and their seconds together.
        total: number of runs of the study.
        measured: by earlier runs of this folder.
        jobs: runs at one time.
    """
    count, seconds = left
    if not count:
        return f"All {total} runs ended."
    share = seconds / min(jobs, cores(), count)
    source = "a guess from another machine, until runs have ended"
    if measured.runs:
        source = f"as its {measured.runs} finished runs"
    return (
        f"{count} of {total} runs are to train, {seconds / count:.0f} s each ({source}).\n"
        f"{jobs} at one time on {cores()} cores: {duration(share)}."
    )


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
        self._jobs = min(jobs, cores())
        self._lock = threading.Lock()

    def tell(self, run: Run, state: str) -> None:
        """A run starts or ends."""
        with self._lock:
            style = None
            text = f"{run.setting} {run.condition} {run.seed}: {state}"
            if state.startswith("stopped"):
                text += "; it starts again"
            elif state == driver.DONE and (end := self._study.outcome(run)) is not None:
                measured = Measured.read(self._study.runs)
                count, seconds = remaining(self._study, self._stages, measured)
                left = duration(seconds / max(min(self._jobs, count), 1))
                text += f", last accuracy {end.last:.3f}; {count} to go, {left} left"
            elif state != "running":
                out = run.folder(self._study.runs)
                text += f"\n{driver.last_lines(out)}    log: {out / driver.LOG}"
                style = "red"
            self._console.print(Text(text), style=style, soft_wrap=True)
