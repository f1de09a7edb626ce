"""Faults of a trainer, of its disk and folder, and of a vLLM server that it samples from."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks.faults.programs import Fault, Outcome, Place, Serving, Trainer, hit, send, until
from rlobj.runs.checkpoints import checkpoints
from rlobj.runs.run_folder import RunFolder

HUNG_LIMIT = 240
"""Seconds after which a hung rank counts as not found."""
WEIGHTS = "model/model.safetensors"


def kill_at_random(trainer: Trainer) -> None:
    """SIGKILL at a random moment of a run, from its start to its last step."""
    until((trainer.run / "config.resolved.yaml").exists, 120)
    with contextlib.suppress(AssertionError):  # it was faster
        trainer.wait_for_step(random.randint(-1, 7))
    time.sleep(random.uniform(0, 0.5))
    trainer.kill()


def kills(place: Place, count: int) -> Outcome:
    """Many runs, each killed once at a random moment."""
    places = [replace(place, name=f"{place.name}/{n}") for n in range(count)]
    outcomes = [hit(each, -1, kill_at_random) for each in places]
    finals = Counter(outcome.final for outcome in outcomes)
    shown = ", ".join(f"{number} of {count} {final}" for final, number in finals.items())
    return Outcome(-9, [each.lost for each in outcomes], shown)


def interrupt_twice(trainer: Trainer) -> None:
    """Ctrl-C, and again in the same step, which SIGSTOP makes long: an echo is not counted."""
    numbers = (signal.SIGINT, signal.SIGSTOP, signal.SIGINT, signal.SIGCONT)
    for number, seconds in zip(numbers, (0.03, 1.5, 0, 0), strict=True):
        trainer.process.send_signal(number)
        time.sleep(seconds)


def full_disk(place: Place) -> Outcome:
    """The disk is full after step 4, where a checkpoint is due at step 6 (ENOSPC)."""
    disk = place.path("disk")
    fill = disk / "fill"
    with small_disk(disk, 16 << 20):
        fault, then = (lambda _: take_space(fill)), (lambda _: fill.unlink())
        outcome = hit(place, 4, fault, then=then, name="disk/run")
        outcome.more["partial files left"] = len(list(disk.rglob("*.partial")))
        return outcome


@contextlib.contextmanager
def small_disk(folder: Path, size: int):
    """A file system of some bytes, in memory. It needs the right to mount one."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(words, capture_output=True, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def take_space(file: Path) -> None:
    """Fill the disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as stream:
        while True:
            stream.write(bytes(1 << 12))


def damaged(
    file: str,
    damage: Callable[[Path], Any],
    *words: str,
    fault: Callable[[Trainer], Any] = Trainer.kill,
) -> Fault:
    """A file of the newest checkpoint is damaged, after a kill or when all steps are made."""

    def then(run: Path) -> None:
        damage(checkpoints(run)[-1] / file)

    return lambda place: hit(place, 7, fault, *words, then=then)


def flip(file: Path) -> None:
    """Change one bit near the end of a file."""
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def edit_rate(run: Path) -> None:
    """training.learning_rate x 10 in config.resolved.yaml."""
    file = run / "config.resolved.yaml"
    text = file.read_text()
    assert "learning_rate: 0.002" in text, text
    file.write_text(text.replace("learning_rate: 0.002", "learning_rate: 0.02"))


def shared_code(section: str, setting: str, text: str, place: Place) -> Outcome:
    """A run folder from somebody else whose configuration names code by its path, as CODE."""
    trainer = place.start()
    trainer.wait_for_step(5)
    trainer.kill()
    ran, code = place.path("it-ran"), place.path("code.py")
    code.write_text(f"open({str(ran)!r}, 'w').close()\n")
    file = trainer.run / "config.resolved.yaml"
    settings = yaml.safe_load(file.read_text())
    settings[section] |= {"kind": "custom"} if section == "rewards" else {}
    settings[section][setting] = text.replace("CODE", str(code))
    file.write_text(yaml.safe_dump(settings, sort_keys=False))
    resumed = place.resume(trainer.run)
    outcome = Outcome(resumed.end(), message=resumed.message())
    outcome.final = "its code ran" if ran.exists() else "its code did not run"
    return outcome


def hung_rank(place: Place) -> Outcome:
    """SIGSTOP to rank 1 of two processes, with training.hang_timeout=30."""
    trainer = place.start("--processes", "2", training={"steps": 200, "hang_timeout": 30})
    trainer.wait_for_step(4)
    ranks = psutil.Process(trainer.process.pid).children()
    done, began = trainer.done(), time.monotonic()
    send([each for each in ranks if each.environ().get("RANK") == "1"], signal.SIGSTOP)
    code = trainer.end(HUNG_LIMIT)
    seconds = time.monotonic() - began
    send(ranks, signal.SIGKILL)
    outcome = Outcome(code, done - RunFolder(trainer.run).steps_saved())
    outcome.final = f"not found in {HUNG_LIMIT} s"
    if code is not None:
        outcome.final, outcome.message = f"found after {seconds:.0f} s", trainer.message()
    return outcome


def cut(file: Path) -> None:
    """Keep the beginning of a file."""
    os.truncate(file, 100)


# Servers.

SECRET = "a key of the benchmark"
_running: list[Serving] = []


def served(place: Place, key: str = SECRET, **waits: float) -> tuple[Place, Serving]:
    """The place with a server that is ready. One with this key that runs is used again."""
    if not any(
        each.key == key and each.process.poll() is None and each.engine() for each in _running
    ):
        stop_all()
        _running.append(Serving(place.policy, place.folder, key))
    return replace(place, server=_running[0], waits=waits), _running[0]


def stop_all() -> None:
    """Kill the server that runs."""
    while _running:
        _running.pop().kill()


def server_hit(
    during: str,
    key: str,
    act: Callable[[Serving], Any],
    place: Place,
    *,
    repair: Callable[[Serving], Any] = lambda server: None,
    **waits: float,
) -> Outcome:
    """Do something to a run's server, and repair the server when the run has ended.

    Args:
        during: "sampling", the fifth rollout, or "sync", when the run sends weights.
        key: of the server; "" = it makes one.
        act: what is done.
        place: of the run.
        repair: what is done when the run has ended.
        waits: settings of `sampling.server`.
    """
    given, server = served(place, key, **waits)

    def fault(trainer: Trainer) -> None:
        if during == "sampling":
            time.sleep(0.3)
        else:
            syncs = server.syncs()
            until(lambda: server.syncs() > syncs, 300)
        act(server)

    return hit(given, 4, fault, then=lambda run: repair(server))


def to_engine(number: int) -> Callable[[Serving], None]:
    """Sends a signal to all of vLLM's processes; SIGKILL is what comes if memory is short."""
    return lambda server: send(server.engine(), number)


def second_trainer(place: Place) -> Outcome:
    """Another run starts on the same server."""
    given, refused = served(place)[0], {}

    def fault(first: Trainer) -> None:
        second = given.start(name="second")
        refused.update(exit=second.end(), message=second.message())

    outcome = hit(given, 3, fault)
    outcome.more["second"] = refused
    return outcome


def other_engine(place: Place) -> Outcome:
    """The server is gone for good; the run is resumed with `--sampler transformers`."""
    return hit(served(place)[0], 4, Trainer.kill, "--sampler", "transformers")


def killed(key: str, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts when the run has ended, and the run is resumed."""
    act, repair = to_engine(signal.SIGKILL), Serving.restart
    return server_hit(during, key, act, place, repair=repair, patience=20)


def restarted(key: str, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts at once on the same port."""
    return server_hit(during, key, Serving.restart, place)


def hung(place: Place) -> Outcome:
    """SIGSTOP to vLLM's processes while it samples, with sampling.server.timeout=5."""
    stop, go_on = to_engine(signal.SIGSTOP), to_engine(signal.SIGCONT)
    return server_hit("sampling", SECRET, stop, place, repair=go_on, timeout=5, patience=20)


AUTOMATIC, FIXED = "(automatic key)", "(fixed key)"
FAULTS: dict[str, Fault] = {
    "trainer: kill -9 at a random moment": lambda place: hit(place, -1, kill_at_random),
    "trainer: SIGTERM": lambda place: hit(place, 4, lambda each: each.process.terminate()),
    "trainer: Ctrl-C twice": lambda place: hit(place, 4, interrupt_twice),
    "disk full (ENOSPC)": full_disk,
    "newest checkpoint: one bit of the weights": damaged(WEIGHTS, flip),
    "newest checkpoint: moments cut": damaged("optimizer/moments.safetensors", cut),
    "newest checkpoint: state.json missing": damaged("state.json", Path.unlink),
    "newest checkpoint: manifest damaged": damaged("manifest.json", cut),
    "newest checkpoint of a finished run: one bit": damaged(
        WEIGHTS, flip, "--set", "training.steps=8", fault=lambda _: None
    ),
    "learning rate edited in config.resolved.yaml": lambda place: hit(
        place, 5, Trainer.kill, then=edit_rate
    ),
    "resume with another learning rate": lambda place: hit(
        place, 5, Trainer.kill, "--set", "training.learning_rate=0.001"
    ),
    "shared folder: reward function by path": partial(shared_code, "rewards", "target", "CODE:f"),
    "shared folder: custom rule in the objective": partial(
        shared_code, "objective", "drop", "custom('CODE:f')"
    ),
    "a rank hangs (SIGSTOP)": hung_rank,
    f"server killed while it samples {AUTOMATIC}": partial(killed, "", "sampling"),
    f"server started again while it samples {AUTOMATIC}": partial(restarted, "", "sampling"),
    f"server killed while it samples {FIXED}": partial(killed, SECRET, "sampling"),
    f"server killed in a sync {FIXED}": partial(killed, SECRET, "sync"),
    f"server started again while it samples {FIXED}": partial(restarted, SECRET, "sampling"),
    f"server started again in a sync {FIXED}": partial(restarted, SECRET, "sync"),
    "server hangs (SIGSTOP)": hung,
    "second trainer on a server": second_trainer,
    "resume with --sampler transformers": other_engine,
}
