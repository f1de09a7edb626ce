"""A long run of tiny steps to which many faults are done, and what its processes grow by."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.kinds import served, small_disk, take_space
from benchmarks.faults.programs import Outcome, Place, Serving, Trainer, compared, until
from benchmarks.harness import note
from rlobj.runs.metrics import read_metrics
from rlobj.runs.sessions import read_sessions

DISK = 1 << 30
"""Bytes of the file system of the run."""
EVERY = 25
"""Steps between two looks at the memory."""


def started(place: Place, steps: int, name: str = "run") -> Trainer:
    """A run of tiny steps, one step ahead of its updates."""
    sampling = {"prompts_per_step": 4, "group_size": 8, "max_tokens": 2, "async_depth": 1}
    return place.start(
        name=name,
        objective={"mismatch": {"kind": "truncate"}},
        sampling=sampling,
        training={"steps": steps, "learning_rate": 1e-4, "max_skipped": 1000},
        evaluation={"every": 0},
        output={"records_mb": 0},
    )


def undisturbed(place: Place, steps: int) -> tuple[Path, dict[str, Any]]:
    """A run that nothing happens to, and the memory of trainer and server in it; made once."""
    file, run = place.path("memory.json"), place.path("run")
    if not file.exists():
        trainer, looks = started(place, steps), []
        while trainer.process.poll() is None:
            done = trainer.done()
            if place.server and done >= EVERY * (len(looks) + 1):
                looks.append({"step": done, **memory(trainer, place.server)})
            time.sleep(0.5)
        assert trainer.end() == 0, f"the undisturbed run: {trainer.message()}"
        file.write_text(json.dumps({"looks": looks, "growth": growth(looks)}))
    return run, json.loads(file.read_text())


def memory(trainer: Trainer, server: Serving) -> dict[str, float]:
    """Resident MiB of the trainer and of all of the server's processes."""
    pids = [server.process.pid, *(each.pid for each in server.engine())]
    used = {"trainer": 0.0, "server": 0.0}
    for pid in (trainer.process.pid, *pids):
        with contextlib.suppress(psutil.Error):
            name = "server" if pid in pids else "trainer"
            used[name] += round(psutil.Process(pid).memory_info().rss / 2**20, 2)
    return used


def growth(looks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Slope of a line through the second half of the looks, in MiB per 100 syncs."""
    late = looks[len(looks) // 2 :]
    steps, found = [look["step"] for look in late], {}
    for name in ("trainer", "server"):
        line = statistics.linear_regression(steps, [look[name] for look in late])
        found[name] = round(100 * line.slope, 3)
    return found


def planned(steps: int, kills: int, draw: random.Random) -> list[tuple[int, str]]:
    """The step and the kind of each fault.

    In the first quarter of the steps, the disk is full once and the trainer is killed twice. The
    other faults come in the second one, in random order.
    """
    early = ["disk full", "trainer killed", "trainer killed"]
    late = ["server killed"] * kills + ["trainer killed"] * (kills - 2)
    quarter, plan = steps // 4, []
    for first, faults in ((1, early), (1 + quarter, late)):
        draw.shuffle(faults)
        moments = sorted(draw.sample(range(first, first + quarter), len(faults)))
        plan += zip(moments, faults, strict=True)
    return plan


def night(place: Place, steps: int, kills: int) -> Outcome:
    """A run with faults, which is resumed whenever it has ended, beside a run without any."""
    given, server = served(place)
    whole, facts = undisturbed(replace(given, name="whole-night"), steps)
    began, plan, events = time.monotonic(), planned(steps, kills, random.Random(0)), []
    disk = place.path("disk")
    with small_disk(disk, DISK):
        trainer = started(given, steps, "disk/run")
        while (done := trainer.done()) < steps or trainer.process.poll() != 0:
            event: dict[str, Any] = {}
            if trainer.process.poll() is not None:
                trainer, event = resumed(given, trainer)
            elif plan and done >= plan[0][0]:
                event = disturb(plan.pop(0)[1], trainer, server, disk / "fill")
            if event:
                events.append({"step": trainer.done(), **event})
                note(str(events[-1]))
            time.sleep(0.2)
        seconds = round(time.monotonic() - began)
        run = shutil.copytree(trainer.run, place.path("run"))
    more = {"seconds": seconds, **judged(run, steps), **facts, "events": events}
    lost = [each["lost"] for each in events if "lost" in each]
    return Outcome(trainer.end(), lost, compared(run, whole), more=more)


def disturb(fault: str, trainer: Trainer, server: Serving, fill: Path) -> dict[str, Any]:
    """Do a fault; what came of it."""
    event: dict[str, Any] = {"fault": fault}
    if fault == "disk full":  # no space until the run has ended
        take_space(fill)
        event |= {"exit": trainer.end(600), "message": trainer.message()}
        fill.unlink()
        return event
    time.sleep(random.random())
    if fault == "server killed":
        return event | {"at": trainer.done(), "start": round(server.restart(), 1)}
    trainer.kill()
    trainer.end()
    return event


def resumed(place: Place, ended: Trainer) -> tuple[Trainer, dict[str, Any]]:
    """Start the run again, and say from which step it goes on."""
    run, code = ended.run, ended.end()
    done, starts = ended.done(), len(read_sessions(run))
    trainer = place.resume(run)
    until(lambda: len(read_sessions(run)) > starts or trainer.process.poll() is not None, 600)
    lost = [done - each["step"] for each in read_sessions(run)[starts:]]
    event = {"fault": "resumed", "after": code, "lost": lost[0] if lost else None}
    return trainer, event | {"message": "" if code == -9 else ended.message()}


def judged(run: Path, steps: int) -> dict[str, Any]:
    """Whether every step is there once, and which rollouts have other weights than planned.

    These are the first ones after a resumption, and those that a server lost.
    """
    import pyarrow.parquet as parquet

    made, other = [line["step"] for line in read_metrics(run)], {}
    for step in range(1, steps + 1):
        file, versions = run / "samples" / f"step-{step:06d}.parquet", set()
        if file.exists():
            versions.update(parquet.read_table(file)["weight_version"].to_pylist())
        if versions != {max(0, step - 2)}:
            other[step] = sorted(versions)
    once = made == list(range(1, len(made) + 1))
    return {"steps made": len(made), "every step once": once, "rollouts of other weights": other}
