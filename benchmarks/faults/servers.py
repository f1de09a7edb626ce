"""Faults of a vLLM server that a run samples from."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.faults.outcome import Fault, Outcome, Place, hit
from benchmarks.faults.programs import Serving, Trainer, send, until

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
