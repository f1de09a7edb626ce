"""Faults of a vLLM server that a run samples from."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from benchmarks.faults.outcome import Fault, Outcome, Place, finished
from benchmarks.faults.programs import (
    KEY,
    NotSeen,
    Serving,
    Trainer,
    compared,
    kill_tree,
    steps_done,
    until,
    weights,
)

STEPS = 8
PAUSED = "PAUSED_NEW"
"""What vLLM logs when a trainer pauses it, before it loads weights."""
SECRET = "a key of the benchmark"
_running: list[Serving] = []


def sections(server: Serving, **settings: Any) -> dict[str, Any]:
    """A run of eight steps that is saved by its end or a failure only; sampling takes a second."""
    return {
        "sampling": {
            "engine": "vllm-server",
            "prompts_per_step": 16,
            "max_tokens": 48,
            "server": {"url": server.url, **settings},
        },
        "checkpoint": {"every": 50},
    }


def serving(place: Place, key: str | None) -> Serving:
    """A server that is ready. One with this kind of key that runs is used again."""
    for server in _running:
        if server.key == key and not server.ended() and server.engine():
            return server
    stop_all()
    server = Serving(place.policy, place.folder / f"server-{time.time():.0f}.log", key)
    _running.append(server)
    server.wait_until_ready()
    return server


def stop_all() -> None:
    """Kill the server that runs."""
    while _running:
        _running.pop().kill()


def begun(place: Place, server: Serving, run: str = "run", /, **settings: Any) -> Trainer:
    """A run that samples from the server."""
    given = sections(server, **settings)
    return place.start(name=run, sections=given, **{KEY: server.key})


def whole_of(place: Place, server: Serving) -> Path:
    """The undisturbed run; it is made once."""
    other = Place(place.folder, place.policy, "whole-served")
    run = other.path("run")
    if steps_done(run) < STEPS:
        trainer = begun(other, server)
        if trainer.end() != 0:
            raise NotSeen(f"the undisturbed run: {trainer.message()}")
    return run


def moment(during: str, trainer: Trainer, server: Serving) -> None:
    """Wait until the run samples its fifth rollout, or sends the weights of a later step."""
    trainer.wait_for_step(4)
    if during == "sampling":
        time.sleep(0.3)
        return
    paused = server.engine_log().count(PAUSED)
    until(lambda: server.engine_log().count(PAUSED) > paused, 300, "a sync", pause=0.001)


def hit(
    place: Place,
    key: str | None,
    during: str,
    fault: Callable[[Serving], Any],
    repair: Callable[[Serving], Any] | None = None,
    **settings: Any,
) -> Outcome:
    """Do a fault to the server of a run, and repair the server when the run has ended."""
    server = serving(place, key)
    whole = whole_of(place, server)
    trainer = begun(place, server, **settings)
    moment(during, trainer, server)
    began = time.monotonic()
    fault(server)
    try:
        outcome = Outcome(trainer.end(900), message=trainer.message())
        outcome.more["seconds until it ended"] = round(time.monotonic() - began, 1)
        outcome.more["steps done"] = max(0, steps_done(trainer.run))
        outcome.more["steps saved"] = weights(trainer.run)[0]
    finally:
        if repair is not None:
            repair(server)
    return ended(place, outcome, trainer, whole, server)


def ended(
    place: Place, outcome: Outcome, trainer: Trainer, whole: Path, server: Serving
) -> Outcome:
    """Compare the weights of a run that was not stopped; resume the others."""
    if outcome.exit == 0:
        outcome.lost, outcome.final = 0, compared(trainer.run, whole)
        return outcome
    return finished(place, outcome, trainer.run, whole, **{KEY: server.key})


def killed(key: str | None, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts when the run has ended, and the run is resumed."""
    return hit(place, key, during, Serving.kill_engine, Serving.restart, patience=20)


def restarted(key: str | None, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts at once on the same port."""
    return hit(place, key, during, Serving.restart)


def hung(place: Place) -> Outcome:
    """SIGSTOP to vLLM's processes while it samples, with sampling.server.timeout=5."""
    stop = methodcaller("signal", signal.SIGSTOP)
    go_on = methodcaller("signal", signal.SIGCONT)
    return hit(place, SECRET, "sampling", stop, go_on, timeout=5, patience=20)


def second_trainer(place: Place) -> Outcome:
    """Another run starts on the same server."""
    server = serving(place, SECRET)
    whole = whole_of(place, server)
    first = begun(place, server)
    first.wait_for_step(3)
    second = begun(place, server, "second")
    outcome = Outcome(first.end(600), message=first.message())
    outcome.more["second"] = {"exit": second.end(600), "message": second.message()}
    return ended(place, outcome, first, whole, server)


def other_engine(place: Place) -> Outcome:
    """The server is gone for good; the run is resumed with `--sampler transformers`."""
    server = serving(place, SECRET)
    whole = whole_of(place, server)
    trainer = begun(place, server)
    trainer.wait_for_step(4)
    kill_tree(trainer.process.pid)
    outcome = Outcome(trainer.end())
    run = trainer.run
    return finished(place, outcome, run, whole, "--sampler", "transformers", **{KEY: SECRET})


AUTOMATIC, FIXED = "(automatic key)", "(fixed key)"
FAULTS: dict[str, Fault] = {
    f"server killed while it samples {AUTOMATIC}": partial(killed, None, "sampling"),
    f"server started again while it samples {AUTOMATIC}": partial(restarted, None, "sampling"),
    f"server killed while it samples {FIXED}": partial(killed, SECRET, "sampling"),
    f"server killed in a sync {FIXED}": partial(killed, SECRET, "sync"),
    f"server started again while it samples {FIXED}": partial(restarted, SECRET, "sampling"),
    f"server started again in a sync {FIXED}": partial(restarted, SECRET, "sync"),
    "server hangs (SIGSTOP)": hung,
    "second trainer on a server": second_trainer,
    "resume with --sampler transformers": other_engine,
}
