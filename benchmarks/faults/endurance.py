"""Long runs of tiny steps: what grows over hundreds of syncs, and a night with many faults."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.outcome import Place
from benchmarks.faults.programs import (
    KEY,
    NotSeen,
    Serving,
    Trainer,
    compared,
    kill_tree,
    resumed_from,
    steps_done,
    until,
    weight_versions,
)
from benchmarks.faults.servers import SECRET, serving
from benchmarks.faults.trainers import small_disk, take_space
from benchmarks.harness import note
from rlobj.config.run_folder import read_metrics

DISK = 1 << 30
"""Bytes of the file system of the night's run."""
EVERY = 25
"""Steps between two looks at the memory."""


def sections(steps: int, server: Serving) -> dict[str, Any]:
    """A run of tiny steps, one step ahead of its updates."""
    return {
        "objective": {"mismatch": {"kind": "truncate"}},
        "sampling": {
            "engine": "vllm-server",
            "prompts_per_step": 4,
            "group_size": 8,
            "max_tokens": 2,
            "async_depth": 1,
            "server": {"url": server.url},
        },
        "training": {"steps": steps, "learning_rate": 1e-4, "max_skipped": 1000},
        "checkpoint": {"every": 50, "best": False},
        "evaluation": {"every": 0},
        "output": {"records_mb": 0},
    }


def undisturbed(place: Place, steps: int) -> tuple[Path, dict[str, Any]]:
    """A run that nothing happens to, and the memory of trainer and server in it; made once."""
    file, run = place.path("memory.json"), place.path("run")
    if not file.exists():
        server = serving(place, SECRET)
        trainer = place.start(sections=sections(steps, server), **{KEY: SECRET})
        looks: list[dict[str, float]] = []
        while trainer.process.poll() is None:
            done = steps_done(run)
            if done >= EVERY * (len(looks) + 1):
                looks.append({"step": done, **memory(trainer, server)})
            time.sleep(0.5)
        if trainer.end() != 0:
            raise NotSeen(f"the undisturbed run: {trainer.message()}")
        file.write_text(json.dumps({"looks": looks, "growth": growth(looks)}))
    return run, json.loads(file.read_text())


def memory(trainer: Trainer, server: Serving) -> dict[str, float]:
    """Resident MiB of the trainer and of all of the server's processes."""
    ids = {"trainer": [trainer.process.pid], "server": [each.pid for each in server.processes()]}
    used = dict.fromkeys(ids, 0.0)
    for name in ids:
        for pid in ids[name]:
            with contextlib.suppress(psutil.Error):
                used[name] += psutil.Process(pid).memory_info().rss / 2**20
    return {name: round(mib, 2) for name, mib in used.items()}


def growth(looks: Sequence[dict[str, float]]) -> dict[str, float]:
    """Slope of a line through the second half of the looks, in MiB per 100 syncs."""
    late = looks[len(looks) // 2 :]
    steps = [look["step"] for look in late]
    found = {}
    for name in ("trainer", "server"):
        line = statistics.linear_regression(steps, [look[name] for look in late])
        found[name] = round(100 * line.slope, 3)
    return found


class Night:
    """A run of many steps to which faults are done; it is resumed whenever it has ended.

    In the first quarter, the disk is full once and the trainer is killed twice. The other faults
    come in the second one, in random order.

    Args:
        place: of the run.
        steps: of the run.
        kills: of the server, and as many of the trainer.
        seed: of the moments.
    """

    def __init__(self, place: Place, steps: int, kills: int, seed: int = 0) -> None:
        self.place, self.steps = place, steps
        self.server = serving(place, SECRET)
        self.events = place.path("events.jsonl")
        self.disk = place.path("disk")
        self.disk.mkdir(exist_ok=True)
        self.plan = planned(steps, kills, random.Random(seed))
        self.words = sections(steps, self.server)

    def run(self) -> dict[str, Any]:
        """Run to the last step; what happened, and how the run compares with its plan."""
        faults: dict[str, Callable[[Trainer], None]] = {
            "server": self.kill_server,
            "trainer": self.kill_trainer,
            "disk": self.fill_disk,
        }
        began, plan = time.monotonic(), list(self.plan)
        with small_disk(self.disk, DISK):
            trainer = self.place.start(name="disk/run", sections=self.words, **{KEY: SECRET})
            while True:
                if trainer.process.poll() is not None:
                    if trainer.end() == 0 and steps_done(trainer.run) >= self.steps:
                        break
                    trainer = self.resume(trainer)
                elif plan and steps_done(trainer.run) >= plan[0][0]:
                    faults[plan.pop(0)[1]](trainer)
                time.sleep(0.2)
            seconds = round(time.monotonic() - began)
            shutil.copytree(trainer.run, self.place.path("run"))
        return {"seconds": seconds, **judged(self.place.path("run"), self.steps)}

    def told(self, fault: str, trainer: Trainer, **facts: Any) -> None:
        """Write an event to events.jsonl."""
        event = {"fault": fault, "step": steps_done(trainer.run), **facts}
        with self.events.open("a") as file:
            file.write(json.dumps(event) + "\n")
        note(str(event))

    def kill_server(self, trainer: Trainer) -> None:
        """SIGKILL to the server, and a new one on the same port."""
        step = steps_done(trainer.run)
        time.sleep(random.random())
        seconds = self.server.restart()
        self.told("server killed", trainer, at=step, start=round(seconds, 1))

    def kill_trainer(self, trainer: Trainer) -> None:
        """SIGKILL to the trainer; the loop resumes it."""
        time.sleep(random.random())
        kill_tree(trainer.process.pid)
        trainer.end()
        self.told("trainer killed", trainer)

    def fill_disk(self, trainer: Trainer) -> None:
        """No space until the run has ended."""
        take_space(self.disk / "fill")
        code = trainer.end(600)
        (self.disk / "fill").unlink(missing_ok=True)
        self.told("disk full", trainer, exit=code, message=trainer.message())

    def resume(self, ended: Trainer) -> Trainer:
        """Start the run again."""
        done, code = steps_done(ended.run), ended.process.poll()
        message = "" if code == -9 else ended.message()
        starts = resumed_from(ended.run)
        trainer = self.place.resume(ended.run, **{KEY: SECRET})
        with contextlib.suppress(NotSeen):
            until(
                lambda: len(resumed_from(ended.run)) > len(starts) or trainer.process.poll(),
                600,
                "the start",
                pause=0.2,
            )
        again = resumed_from(ended.run)[len(starts) :]
        lost = done - again[0] if again else None
        self.told("resumed", trainer, after=code, lost=lost, message=message)
        return trainer


def planned(steps: int, kills: int, draw: random.Random) -> list[tuple[int, str]]:
    """The step and the kind of each fault."""
    early = ["disk", "trainer", "trainer"]
    late = ["server"] * kills + ["trainer"] * (kills - 2)
    quarter, plan = steps // 4, []
    for first, faults in ((1, early), (1 + quarter, late)):
        draw.shuffle(faults)
        moments = sorted(draw.sample(range(first, first + quarter), len(faults)))
        plan += zip(moments, faults, strict=True)
    return plan


def judged(run: Path, steps: int) -> dict[str, Any]:
    """Whether every step is there once, and which rollouts have other weights than planned."""
    made = [line["step"] for line in read_metrics(run)]
    versions = weight_versions(run)
    other = {
        step: sorted(versions.get(step, ()))
        for step in range(1, steps + 1)
        if versions.get(step) != {max(0, step - 2)}
    }
    return {
        "steps made": len(made),
        "every step once": made == list(range(1, len(made) + 1)),
        "rollouts of other weights": other,
    }


def night(place: Place, steps: int, kills: int) -> dict[str, Any]:
    """The run with faults, beside a run without any."""
    whole, facts = undisturbed(Place(place.folder, place.policy, "whole"), steps)
    made = Night(place, steps, kills).run()
    same = compared(place.path("run"), whole)
    events = [json.loads(line) for line in place.path("events.jsonl").read_text().splitlines()]
    return {**made, "final weights": same, **facts, "events": events}
