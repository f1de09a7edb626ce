"""Calls of a function of the user.

A function that a setting names runs in a worker process, which is killed at a deadline. A function
that was passed from Python is called here, where it takes as long as it takes.
"""

from __future__ import annotations

import math
import random
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent import futures
from contextlib import closing, suppress
from functools import partial
from typing import Any

from rlobj.base.errors import ConfigError
from rlobj.base.showing import place_at
from rlobj.base.targets import trusted_target
from rlobj.base.threads import DaemonThreads
from rlobj.rewards.functions import BEGUN, Call, Function, Outcome
from rlobj.workers.worker import Worker

_POLL = 1.0
"""Longest single wait, in seconds. A signal that arrives just before a wait is handled after it."""


class Calls:
    """Calls a function here. Calls from several threads do not overlap.

    Those of an `async` function run on an event loop in a thread, each with a deadline.

    Args:
        function: the user's.
        settings: of `Function`.

    Attributes:
        form: the form of what the function returns; see `Outcome.form`.
    """

    def __init__(self, function: Callable[..., Any], *settings: Any) -> None:
        self._function, self._threads = Function(function, *settings), DaemonThreads()
        self._lock, self._work = threading.Lock(), futures.Future[None]()
        self._work.set_result(None)
        self.refusal = self._function.refusal
        self.form: str | None = None

    def outcomes(self, calls: Sequence[Call], allowed: int) -> Generator[Outcome]:
        """Make the calls; what became of each, in their order. Close this generator.

        Args:
            calls: what is graded.
            allowed: as in `CallsInProcess`; here the caller stops before the next call.
        """
        with self._lock:
            for outcome in self._made(calls):
                self.form = outcome.form or self.form
                yield outcome

    def close(self) -> None:
        """Close the event loop, unless an interrupted call is still there."""
        if self._function.is_async and self._work.done():
            self._wait(self._function.close)

    def _made(self, calls: Sequence[Call]) -> Iterable[Outcome]:
        if not self._function.is_async:
            return self._function.outcomes(calls, self.form)
        told = dict[int, Outcome]()

        def tell(outcome: Outcome) -> None:
            told[outcome.index] = outcome

        self._wait(partial(self._function.together, calls, self.form, tell))
        return [told[index] for index in range(len(calls))]

    def _wait(self, function: Callable[[], None]) -> None:
        """Call a function in a thread, as this one may have an event loop; a signal ends it."""
        self._work = self._threads.submit(function)
        while not self._work.done():
            futures.wait([self._work], timeout=_POLL)
        self._work.result()


class CallsInProcess:
    """Calls a function in a process. Calls from several threads do not overlap.

    Args:
        opened: returns what makes the calls; it is called again after a deadline.
        deadline: time limit of a call, in seconds.

    Attributes:
        form: the form of what the function returns; see `Outcome.form`.
    """

    def __init__(self, opened: Callable[[], InProcess], deadline: float) -> None:
        self._opened, self._deadline = opened, deadline
        self._lock = threading.Lock()
        self._maker: InProcess | None = opened()
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
        """Let the process end; the next call starts another one."""
        if self._maker is not None:
            self._maker.close()
        self._maker = None

    def _ready(self) -> InProcess:
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
