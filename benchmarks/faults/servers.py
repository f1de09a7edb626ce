"""Faults of a vLLM server that a run samples from."""

from __future__ import annotations

import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults.outcome import Fault, Outcome, Place, finished
from benchmarks.faults.programs import (
    KEY,
    NotSeen,
    Serving,
    Trainer,
    checkpoints,
    compared,
    kill_tree,
    steps_done,
    until,
)
from rlobj.samplers.vllm.settings import ServerSettings

STEPS = 8
PAUSED = "PAUSED_NEW"
"""What vLLM logs when a trainer pauses it, before it loads weights."""
SECRET = "a key of the benchmark"
PATIENT = "patience" in ServerSettings.model_fields
"""Whether this version waits for a server to come back."""
_running: dict[str, Serving] = {}


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


def serving(place: Place, key: str | None, name: str = "only", *options: str) -> Serving:
    """A server that is ready. One with this kind of key that runs is used again."""
    server = _running.get(name)
    if server is not None and (server.key != key or server.ended() or not server.engine()):
        server.kill()
        server = None
    if server is None:
        log = place.folder / f"server-{name}-{time.time():.0f}.log"
        server = _running[name] = Serving(place.policy, log, key=key, options=options)
    server.wait_until_ready()
    return server


def stop_all() -> None:
    """Kill the servers."""
    for server in _running.values():
        server.kill()
    _running.clear()


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


def killed(key: str | None, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts when the run has ended, and the run is resumed."""
    server = serving(place, key)
    whole = whole_of(place, server)
    trainer = begun(place, server, **({"patience": 20} if PATIENT else {}))
    moment(during, trainer, server)
    began = time.monotonic()
    server.kill_engine()
    outcome = Outcome(trainer.end(900), message=trainer.message())
    outcome.more |= {"seconds until it stopped": round(time.monotonic() - began, 1)}
    outcome.more |= saved_of(trainer.run)
    outcome.more["seconds of a start"] = round(server.restart(), 1)
    return finished(place, outcome, trainer.run, whole, **{KEY: key})


def saved_of(run: Path) -> dict[str, int]:
    """Steps done, and steps in the newest checkpoint."""
    saved = checkpoints(run)
    return {
        "steps done": max(0, steps_done(run)),
        "steps saved": int(saved[-1].name[-6:]) if saved else 0,
    }


def restarted(key: str | None, during: str, place: Place) -> Outcome:
    """SIGKILL to vLLM; a new server starts at once on the same port."""
    server = serving(place, key)
    whole = whole_of(place, server)
    trainer = begun(place, server, **({} if PATIENT else {"retries": 8}))
    moment(during, trainer, server)
    began = time.monotonic()
    server.kill_engine()
    seconds = server.restart()
    outcome = Outcome(trainer.end(900), message=trainer.message())
    outcome.more |= {"seconds of a start": round(seconds, 1)}
    outcome.more |= {"seconds until it ended": round(time.monotonic() - began, 1)}
    outcome.more |= saved_of(trainer.run)
    if outcome.exit == 0:
        outcome.lost, outcome.final = 0, compared(trainer.run, whole)
        return outcome
    return finished(place, outcome, trainer.run, whole, **{KEY: key})


def hung(place: Place) -> Outcome:
    """SIGSTOP to vLLM's processes while it samples, with sampling.server.timeout=5."""
    server = serving(place, SECRET)
    whole = whole_of(place, server)
    trainer = begun(place, server, timeout=5, **({"patience": 20} if PATIENT else {}))
    moment("sampling", trainer, server)
    began = time.monotonic()
    server.signal(signal.SIGSTOP)
    try:
        outcome = Outcome(trainer.end(400), message=trainer.message())
        outcome.more |= {"seconds until it stopped": round(time.monotonic() - began, 1)}
        outcome.more |= saved_of(trainer.run)
    finally:
        server.signal(signal.SIGCONT)
    return finished(place, outcome, trainer.run, whole, **{KEY: SECRET})


def second_trainer(place: Place) -> Outcome:
    """Another run starts on the same server."""
    server = serving(place, SECRET)
    whole = whole_of(place, server)
    first = begun(place, server)
    first.wait_for_step(3)
    second = begun(place, server, "second")
    outcome = Outcome(first.end(600), message=first.message())
    outcome.more["second"] = {"exit": second.end(600), "message": second.message()}
    if outcome.exit == 0:
        outcome.lost, outcome.final = 0, compared(first.run, whole)
        return outcome
    return finished(place, outcome, first.run, whole, **{KEY: SECRET})


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
