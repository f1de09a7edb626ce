"""Calls of a function of the user, which end at a deadline.

A function that a setting names runs in a worker process, which is killed at a deadline. A function
that was passed from Python runs in a daemon thread, which nothing can end: at a deadline it is left
alone, and its late result reaches nobody.
"""

from __future__ import annotations

import faulthandler
import math
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.showing import place_at, place_of
from rlobj.base.targets import trusted_target
from rlobj.rewards.functions import BEGUN, Call, Function, Outcome
from rlobj.workers.worker import Worker

_POLL = 1.0
"""Longest single wait, in seconds. A signal that arrives just before a wait is handled after it."""

_STANDSTILL = 30.0
"""Seconds after a deadline at which a process that executes no Python prints where it stands."""


class Calls:
    """Calls a function. Calls from several threads do not overlap.

    Args:
        opened: returns what makes the calls; it is called again after a deadline.
        deadline: time limit of a call, in seconds.

    Attributes:
        form: the form of what the function returns; see `Outcome.form`.
    """

    def __init__(self, opened: Callable[[], InThread | InProcess], deadline: float) -> None:
        self._opened, self._deadline = opened, deadline
        self._lock = threading.Lock()
        self._maker: InThread | InProcess | None = opened()
        self.form: str | None = None

    def refusal(self, columns: Sequence[Sequence[str]]) -> str | None:
        """Why the function cannot be called with these columns; None if it can."""
        with self._lock:
            return self._ready().refusal(columns)

    def outcomes(self, calls: Sequence[Call], allowed: int) -> Generator[Outcome]:
        """Make the calls; what became of each, in their order. Close this generator.

        Args:
            calls: what is graded.
            allowed: failures after which no further call is made.
        """
        by_index, turn = dict[int, Outcome](), 0
        with self._lock, closing(self._unordered(calls, allowed)) as outcomes:
            for index, outcome in outcomes:
                by_index[index] = outcome
                while turn in by_index:
                    yield by_index[turn]
                    turn += 1

    def close(self) -> None:
        """Let the process or thread end; the next call starts another one."""
        if self._maker is not None:
            self._maker.close()
        self._maker = None

    def _ready(self) -> InThread | InProcess:
        """What makes the calls: a new one if there is none, or if its process has ended."""
        if self._maker is not None and self._maker.ended():
            self.close()
        self._maker = self._maker or self._opened()
        return self._maker

    def _unordered(self, calls: Sequence[Call], allowed: int) -> Generator[tuple[int, Outcome]]:
        """Make the calls: which of them an outcome is of, and the outcome, as they come."""
        left = list(range(len(calls)))
        try:
            while left:
                maker, indices = self._ready(), tuple(left)
                maker.ask([calls[i] for i in indices], self.form, allowed)
                # Calls of an async function keep their deadlines themselves, unless one blocks all.
                patience = self._deadline * 1.25 + 0.1 if maker.is_async else self._deadline
                begun = set[int]()
                try:
                    while (outcome := maker.receive(patience)) is not None:
                        if outcome.reason == BEGUN:
                            begun.add(indices[outcome.index])
                            continue
                        self.form = outcome.form or self.form
                        index = indices[outcome.index]
                        left.remove(index)
                        yield index, outcome
                except (TimeoutError, EOFError) as error:
                    reason = "crash" if isinstance(error, EOFError) else "timeout"
                    where = maker.leave()
                    self._maker = None
                    late = sorted(begun.intersection(left)) or left[:1]
                    for more, i in enumerate(late):
                        left.remove(i)
                        failed = Outcome(i, (), reason, str(error), where, self.form, not more)
                        yield i, failed
        finally:
            if left:
                self.close()


class InThread:
    """Makes calls in a daemon thread.

    A call that keeps Python's own lock, as a regular expression may for years, stops all threads,
    and the signals of the process with them. Then the process prints where it stands.
    """

    def __init__(self, function: Callable[..., Any], *settings: Any) -> None:
        self._user, self._function = function, Function(function, *settings)
        self.is_async = self._function.is_async
        self.refusal = self._function.refusal
        self._questions: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[Outcome | None] = queue.SimpleQueue()
        self._watched = 0.0
        self.thread: threading.Thread | None = None

    def ended(self) -> bool:
        """A thread does not end by itself."""
        return False

    def ask(self, calls: Sequence[Call], form: str | None, allowed: int) -> None:
        """Begin to make calls; see `Function.make`."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name="reward", daemon=True)
            self.thread.start()
        self._watch()  # before the call, which may keep the lock
        self._questions.put((calls, form, allowed))

    def receive(self, seconds: float) -> Outcome | None:
        """The next outcome; None after the last one.

        Raises:
            TimeoutError: there is none in this time.
        """
        end = time.monotonic() + seconds
        while True:
            self._watch()
            with suppress(queue.Empty):
                outcome = self._outcomes.get(timeout=max(0.0, min(_POLL, end - time.monotonic())))
                if outcome is None:
                    faulthandler.cancel_dump_traceback_later()
                return outcome
            if time.monotonic() >= end:
                raise TimeoutError

    def leave(self) -> str:
        """Give up the call in progress: where it is."""
        self.close()
        frame = sys._current_frames().get((self.thread and self.thread.ident) or 0)
        frames = reversed([*traceback.walk_stack(frame)] if frame else [])
        return place_of(self._user, frames)

    def close(self) -> None:
        """End after the call in progress."""
        faulthandler.cancel_dump_traceback_later()
        self._function.stopped = True
        self._questions.put(None)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            calls, form, allowed = question
            self._function.make(calls, form, allowed, self._outcomes.put)
            self._outcomes.put(None)
        self._function.close()

    def _watch(self) -> None:
        """Print the stacks of all threads if the process executes no Python any more.

        `faulthandler` waits in a thread that needs no lock of Python. To start it takes as long as
        some calls, so it is started at most once a second. The process goes on: it may have been
        paused.
        """
        if time.monotonic() > self._watched + _POLL:
            stderr = 2  # sys.stderr may be no file
            faulthandler.dump_traceback_later(self._function.deadline + _STANDSTILL, file=stderr)
            self._watched = time.monotonic()


class InProcess:
    """Makes calls of a function that is named by its module or file, in a worker process.

    Args:
        target: the function.
        memory: limit on the address space of the process, in bytes; 0 = none.
        settings: of `Function`.

    Raises:
        ConfigError: the target may not be imported, cannot be imported, or is not a function.
    """

    def __init__(self, target: str, memory: int, settings: dict[str, Any]) -> None:
        trusted_target(target)
        self._worker = Worker(
            "rlobj.rewards.function_worker:Server",
            {"target": target, **settings},
            memory=memory,
            tells=True,
            keeps_errors=True,
        )
        try:
            self._worker.ready()
        except EOFError as error:
            raise ConfigError(f"target {target!r}: its import {error}") from error
        self.ended = self._worker.ended
        self.is_async, self._definition = self._worker.opening

    def refusal(self, columns: Sequence[Sequence[str]]) -> str | None:
        """Why the function cannot be called with these columns; None if it can."""
        self._send("refusal", columns)
        return self._worker.hear(math.inf)[1]

    def ask(self, calls: Sequence[Call], form: str | None, allowed: int) -> None:
        """Begin to make calls; see `Function.make`.

        Each call has a seed, so what the function draws does not depend on the calls beside it,
        which a thread sends as they come.
        """
        seeded = [(*call[:-1], random.getrandbits(63)) for call in calls]
        self._send("make", seeded, form, allowed)

    def receive(self, seconds: float) -> Outcome | None:
        """The next outcome; None after the last one.

        Raises:
            TimeoutError: there is none in this time.
            EOFError: the process has ended; the text says how.
        """
        kind, value = self._worker.hear(seconds)
        return Outcome(*value) if kind == "part" else None

    def leave(self) -> str:
        """Kill the process: where the call in progress is."""
        if process := self._worker.process:
            process.send_signal(signal.SIGABRT)  # it writes where its threads stand
            with suppress(subprocess.TimeoutExpired):
                process.wait(2)
        self._worker.kill()
        text = self._worker.errors.rpartition("Fatal Python error")[2]
        text = text.partition("Current thread")[2].partition("\n\n")[0] or text
        file = self._definition.removeprefix("\n  at ").rpartition(", line ")[0]
        lines = re.findall(rf'File "{re.escape(file)}", line (\d+)', text) if file else []
        return place_at(file, int(lines[0])) if lines else self._definition

    def close(self) -> None:
        """Let the process end: it closes its event loop."""
        self._worker.kill(patience=2.0)

    def _send(self, *question: Any) -> None:
        try:
            self._worker.send(*question)
        except Exception as error:
            raise ConfigError(
                f"The columns of a problem cannot be sent to the process of the reward: {error}. "
                "Use columns of numbers, texts and lists, or pass the function itself in Python: "
                "reward=FUNCTION"
            ) from error
