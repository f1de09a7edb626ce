"""Faults of a trainer, of its disk and of its folder. The sampler is `transformers`."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.faults.outcome import Fault, Outcome, Place, finished
from benchmarks.faults.programs import NotSeen, checkpoints, kill_tree, steps_done, until


def killed(place: Place) -> Outcome:
    """SIGKILL at a random moment of a run, from its start to its last step."""
    whole, trainer = place.whole(), place.start()
    until((trainer.run / "config.resolved.yaml").exists, 120, "the run")
    with contextlib.suppress(NotSeen):  # it was faster
        trainer.wait_for_step(random.randint(-1, 7))
    time.sleep(random.uniform(0, 0.5))
    trainer.process.kill()
    outcome = Outcome(trainer.end())
    return finished(place, outcome, trainer.run, whole)


def kills(place: Place, count: int) -> dict[str, Any]:
    """Many runs, each killed once at a random moment."""
    outcomes = []
    for number in range(count):
        outcomes.append(killed(Place(place.folder, place.policy, f"{place.name}/{number}")))
    finals = Counter(outcome.final for outcome in outcomes)
    return {"kills": count, "final weights": finals, "lost": [each.lost for each in outcomes]}


def stopped(place: Place) -> Outcome:
    """SIGTERM, which a cluster sends before it takes the machine."""
    whole, trainer = place.whole(), place.start()
    trainer.wait_for_step(4)
    trainer.process.send_signal(signal.SIGTERM)
    outcome = Outcome(trainer.end(60), message=trainer.message())
    return finished(place, outcome, trainer.run, whole)


def interrupted_twice(place: Place) -> Outcome:
    """Ctrl-C, and again in the same step, which SIGSTOP makes long: an echo is not counted."""
    whole, trainer = place.whole(), place.start()
    trainer.wait_for_step(4)
    numbers = (signal.SIGINT, signal.SIGSTOP, signal.SIGINT, signal.SIGCONT)
    for number, seconds in zip(numbers, (0.03, 1.5, 0, 0), strict=True):
        trainer.process.send_signal(number)
        time.sleep(seconds)
    outcome = Outcome(trainer.end(60), message=trainer.message())
    return finished(place, outcome, trainer.run, whole)


def full_disk(place: Place) -> Outcome:
    """The disk is full after step 4, where a checkpoint is due at step 6 (ENOSPC)."""
    whole, mounted = place.whole(), place.path("disk")
    mounted.mkdir(exist_ok=True)
    with small_disk(mounted, 16 << 20):
        trainer = place.start(name="disk/run")
        trainer.wait_for_step(4)
        fill = mounted / "fill"
        take_space(fill)
        outcome = Outcome(trainer.end(120), message=trainer.message())
        fill.unlink(missing_ok=True)
        outcome.more["partial files left"] = len(list(trainer.run.rglob("*.partial")))
        return finished(place, outcome, trainer.run, whole)


@contextlib.contextmanager
def small_disk(folder: Path, size: int):
    """A file system of some bytes, in memory. It needs the right to mount one.

    Raises:
        NotSeen: mounting is not allowed here.
    """
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(words, capture_output=True).returncode:
        raise NotSeen("a small file system: mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def take_space(file: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12):  # a write that does not fit ends the larger pieces
            with contextlib.suppress(OSError):
                while stream.write(b"\0" * size) == size:
                    pass


def damaged(file: str, damage: Callable[[Path], Any], at_the_end: bool = False) -> Fault:
    """A file of the newest checkpoint is damaged, after a kill or when all steps are made."""

    def fault(place: Place) -> Outcome:
        whole, trainer = place.whole(), place.start()
        if not at_the_end:
            trainer.wait_for_step(7)
            trainer.process.kill()
        outcome = Outcome(trainer.end())
        damage(checkpoints(trainer.run)[-1] / file)
        more = ("--set", "training.steps=8") if at_the_end else ()
        return finished(place, outcome, trainer.run, whole, *more)

    return fault


WEIGHTS = "model/model.safetensors"


def flip(file: Path) -> None:
    """Change one bit near the end of a file."""
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def edited_rate(place: Place) -> Outcome:
    """A kill between checkpoints; then training.learning_rate x 10 in config.resolved.yaml."""
    whole, run = place.whole(), cut_between_checkpoints(place)
    file = run / "config.resolved.yaml"
    text = file.read_text()
    assert "learning_rate: 0.002" in text, text
    file.write_text(text.replace("learning_rate: 0.002", "learning_rate: 0.02"))
    return finished(place, Outcome(-9), run, whole)


def cut_between_checkpoints(place: Place) -> Path:
    """A run that was killed after step 5, with a checkpoint at step 3 and later rollouts.

    The kill comes when the rollout of step 6 is on disk: the next start has to decide whether it
    may be trained on.
    """
    trainer = place.start()
    trainer.wait_for_step(5)
    trainer.process.kill()
    trainer.end()
    return trainer.run


def other_rate(place: Place) -> Outcome:
    """Resume with `--set training.learning_rate`."""
    whole, run = place.whole(), cut_between_checkpoints(place)
    return finished(place, Outcome(-9), run, whole, "--set", "training.learning_rate=0.001")


def shared_code(setting: str) -> Fault:
    """A run folder from somebody else whose configuration names code by its path."""

    def fault(place: Place) -> Outcome:
        run = cut_between_checkpoints(place)
        ran, code = place.path("it-ran"), place.path("code.py")
        code.write_text(f"open({str(ran)!r}, 'w').close()\n")
        file = run / "config.resolved.yaml"
        settings = yaml.safe_load(file.read_text())
        if setting == "reward":
            settings["rewards"] = {"kind": "custom", "target": f"{code}:f"}
        else:
            settings["objective"]["drop"] = f"custom('{code}:f')"
        file.write_text(yaml.safe_dump(settings, sort_keys=False))
        trainer = place.resume(run)
        outcome = Outcome(trainer.end(), message=trainer.message())
        outcome.final = "its code ran" if ran.exists() else "its code did not run"
        return outcome

    return fault


HUNG_LIMIT = 240
"""Seconds after which a hung rank counts as not found."""


def hung_rank(place: Place) -> Outcome:
    """SIGSTOP to rank 1 of two processes, with training.hang_timeout=30."""
    sections = {"training": {"steps": 200, "hang_timeout": 30}}
    trainer = place.start("--processes", "2", sections=sections)
    trainer.wait_for_step(4)
    ranks = [
        child
        for child in psutil.Process(trainer.process.pid).children()
        if child.environ().get("RANK") == "1"
    ]
    done, began = steps_done(trainer.run), time.monotonic()
    ranks[0].send_signal(signal.SIGSTOP)
    code = trainer.end(HUNG_LIMIT)
    seconds = time.monotonic() - began
    kill_tree(trainer.process.pid)
    found = code is not None
    outcome = Outcome(code, message=trainer.message() if found else f"none in {HUNG_LIMIT} s")
    outcome.more["seconds until it was found"] = round(seconds, 1) if found else None
    saved = checkpoints(trainer.run)
    outcome.lost = done - (int(saved[-1].name[-6:]) if saved else 0)
    outcome.final = f"found after {seconds:.0f} s" if found else f"not found in {HUNG_LIMIT} s"
    return outcome


FAULTS: dict[str, Fault] = {
    "trainer: kill -9 at a random moment": killed,
    "trainer: SIGTERM": stopped,
    "trainer: Ctrl-C twice": interrupted_twice,
    "disk full (ENOSPC)": full_disk,
    "newest checkpoint: one bit of the weights": damaged(WEIGHTS, flip),
    "newest checkpoint: moments cut": damaged(
        "optimizer/moments.safetensors", lambda file: os.truncate(file, 100)
    ),
    "newest checkpoint: state.json missing": damaged("state.json", Path.unlink),
    "newest checkpoint: manifest damaged": damaged(
        "manifest.json", lambda file: file.write_text("{")
    ),
    "newest checkpoint of a finished run: one bit": damaged(WEIGHTS, flip, at_the_end=True),
    "learning rate edited in config.resolved.yaml": edited_rate,
    "resume with another learning rate": other_rate,
    "shared folder: reward function by path": shared_code("reward"),
    "shared folder: custom rule in the objective": shared_code("rule"),
    "a rank hangs (SIGSTOP)": hung_rank,
}
