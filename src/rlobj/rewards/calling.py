"""Calls of a user's function that may fail or never return.

The function runs in a daemon thread of its own: one call after another, or many at a time if it is
`async`. A call that has not returned at its deadline is given up. Its thread is asked to end and
is never used again, so that a late result reaches nobody, and the process can end without it.

A call that keeps Python's own lock, as a regular expression may for years, stops all threads, and
the signals of the process with them. Then the process prints where it stands, and only SIGKILL ends
it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import inspect
import linecache
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

_POLL = 1.0
"""Longest single wait, in seconds. A signal that arrives just before a wait is handled after it."""

_STANDSTILL = 30.0
"""Seconds after a deadline at which a process that executes no Python prints where it stands."""

_SHOWN = 300
"""Characters of a text in a message."""


class Call(NamedTuple):
    """Positional and named arguments, and what reads the result, also within the deadline."""

    args: Sequence[Any]
    named: Mapping[str, Any]
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        value: what was read from the result.
        reason: "" if it succeeded, "timeout" if it had not returned at its deadline, or the kind of
            exception, such as "error: ValueError".
        error: the exception that the call raised, or None; also SystemExit.
        text: the kind and the text of the exception.
        place: where it raised the exception or was at its deadline, from `place_of`.
        counts: False if another call kept this one from returning.
    """

    value: Any = None
    reason: str = ""
    error: BaseException | None = None
    text: str = ""
    place: str = ""
    counts: bool = True


class _GivenUp(SystemExit):
    """Ends a thread whose call was given up; `threading` prints nothing about a SystemExit."""


class Calls:
    """Calls a function. Calls from several threads do not overlap, but for `async` functions.

    Args:
        function: the user's.
        deadline: time limit of a call, in seconds.
        concurrency: calls of an `async` function that run at the same time.
    """

    def __init__(self, function: Callable[..., Any], deadline: float, concurrency: int) -> None:
        self.function, self.deadline, self._concurrency = function, deadline, concurrency
        called = getattr(function, "__call__", None)  # of an object # noqa: B004
        self._is_async = any(map(inspect.iscoroutinefunction, (function, called)))
        self._lock = threading.Lock()
        self._worker: _Worker | _Loop | None = None

    def outcomes(self, calls: Sequence[Call]) -> Generator[Outcome]:
        """Make the calls; what became of each, in their order. Close this generator."""
        self._watched = -math.inf
        try:
            yield from (self._together if self._is_async else self._in_turn)(calls)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        """Print the stacks of all threads if the process executes no Python any more.

        `faulthandler` waits in a thread that needs no lock of Python. It is started before a call
        is handed over, because that call may keep the lock. To start it takes as long as some
        calls, so it is started at most once a second. The process goes on: it may have been paused.
        """
        if time.monotonic() > self._watched + _POLL:
            stderr = 2  # sys.stderr may be no file
            faulthandler.dump_traceback_later(self.deadline + _STANDSTILL, file=stderr)
            self._watched = time.monotonic()

    def close(self) -> None:
        """Let the thread end; the next call starts another one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _give_up(self, worker: _Worker | _Loop) -> str:
        """Leave a thread alone, and ask it to end; return what it is doing."""
        thread = worker.ident or 0
        frame = sys._current_frames().get(thread)
        place = place_of(self.function, reversed([*traceback.walk_stack(frame)] if frame else []))
        worker.end()
        raised = ctypes.py_object(_GivenUp)  # at the next line of Python that it executes
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
        self._worker = None
        return place

    def _failed(self, error: BaseException) -> Outcome:
        """The outcome of a call that raised an exception. The exception may hang in turn."""
        name = type(error).__name__
        place = place_of(self.function, traceback.walk_tb(error.__traceback__))
        return Outcome(None, f"error: {name}", error, f"{name}: {shown(error, str)}", place)

    def _in_turn(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Call a function that is not `async`, one call after another.

        The thread gets all calls at once: to hand over each one takes longer than a short call. It
        stops after a call that fails, because the failure may end the run.
        """
        done = 0
        while done < len(calls):
            with self._lock:
                worker = self._worker = self._worker or _Worker()
                assert isinstance(worker, _Worker)
                turn = _Turn([partial(self._outcome, call) for call in calls[done:]])
                self._watch()
                worker.asked.put(turn)
                with closing(turn.progress(self.deadline, self._watch)) as progress:
                    for found in progress:
                        done += len(found)
                        yield from found
                if not turn.ended.is_set():
                    done += 1
                    yield Outcome(reason="timeout", place=self._give_up(worker))

    def _outcome(self, call: Call) -> Outcome:
        try:
            return Outcome(call.read(self.function(*call.args, **call.named)))
        except BaseException as error:
            return self._failed(error)

    def _together(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Call an `async` function."""
        found, begun = dict[int, Outcome](), set[int]()
        work: Future[None] | None = None
        for index in range(len(calls)):
            while index not in found:
                self._watch()
                if work is None or work.done():
                    begun = set[int]()
                    rest = {i: call for i, call in enumerate(calls) if i not in found}
                    with self._lock:
                        worker = self._worker = self._worker or _Loop()
                    assert isinstance(worker, _Loop)
                    work = asyncio.run_coroutine_threadsafe(
                        self._all(rest, begun, found), worker.loop
                    )
                answered, known = threading.Event(), len(found)
                worker.loop.call_soon_threadsafe(answered.set)
                if _within(self.deadline, answered.wait) or len(found) > known:
                    wait([work], min(_POLL, self.deadline))
                    continue
                place, work = self._give_up(worker), None  # it never awaits
                for more, i in enumerate(sorted(begun - found.keys())):
                    found.setdefault(i, Outcome(reason="timeout", place=place, counts=not more))
            yield found[index]

    async def _all(
        self, calls: Mapping[int, Call], begun: set[int], found: dict[int, Outcome]
    ) -> None:
        gate = asyncio.Semaphore(self._concurrency)

        async def awaited(index: int, call: Call) -> None:
            begun.add(index)
            try:
                outcome = Outcome(call.read(await self.function(*call.args, **call.named)))
            except BaseException as error:
                outcome = self._failed(error)
            found.setdefault(index, outcome)

        async def one(index: int, call: Call) -> None:
            async with gate:
                work = awaited(index, call)
                task = asyncio.ensure_future(work)
                if not (await asyncio.wait({task}, timeout=self.deadline))[0]:
                    place = place_of(self.function, _awaiting(work))
                    found.setdefault(index, Outcome(reason="timeout", place=place))
                    task.cancel()

        await asyncio.gather(*(one(*each) for each in calls.items()))


class _Turn:
    """Calls that a thread makes one after another, up to the first that fails."""

    def __init__(self, calls: Sequence[Callable[[], Outcome]]) -> None:
        self._calls, self._began, self._stopped = calls, math.inf, False
        self._found: list[Outcome] = []
        self.ended = threading.Event()

    def make(self) -> None:
        """Make the calls, in the thread."""
        for call in self._calls:
            if self._stopped or (self._found and self._found[-1].reason):
                break
            self._began = time.monotonic()
            self._found.append(call())
        self.ended.set()

    def progress(self, deadline: float, watch: Callable[[], None]) -> Generator[list[Outcome]]:
        """Wait until the calls have ended, or until one is at its deadline.

        What has become of calls comes at least once a second. The thread stops if this is closed.
        """
        given, ended = 0, False
        try:
            while not ended:
                watch()
                left = self._began + deadline - time.monotonic()
                ended = self.ended.wait(min(_POLL, deadline, max(left, 0.0)))
                late = left <= 0 and not ended and len(self._found) == given
                found = self._found[given:]
                given += len(found)
                yield found
                if late:
                    return
        finally:
            self._stopped = True


class _Worker(threading.Thread):
    """A daemon thread that makes calls."""

    def __init__(self) -> None:
        super().__init__(name="reward", daemon=True)
        self.asked: queue.SimpleQueue[_Turn | None] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while (turn := self.asked.get()) is not None:
            turn.make()

    def end(self) -> None:
        """End the thread after the call in progress."""
        self.asked.put(None)


class _Loop(threading.Thread):
    """A daemon thread with an event loop, which stays the same for all calls."""

    def __init__(self) -> None:
        super().__init__(name="reward", daemon=True)
        self._runner, self._ended = asyncio.Runner(loop_factory=asyncio.new_event_loop), False
        self.loop = self._runner.get_loop()
        self.loop.set_default_executor(_Daemons())
        self.start()

    def run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ended:  # the user's code may stop the loop, or exit in a task of its own
            with contextlib.suppress(BaseException):
                self.loop.run_forever()
        self._runner.close()

    def end(self) -> None:
        """Stop the loop when it is free."""
        self._ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)


class _Daemons(ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; the process can end while one of them hangs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer: Future[Any] = Future()
        work = partial(fn, *args, **kwargs)
        threading.Thread(target=_settle, args=(work, answer), daemon=True).start()
        return answer


def _settle(work: Callable[[], Any], answer: Future[Any]) -> None:
    """Set the result of the work, or what it raised."""
    if answer.set_running_or_notify_cancel():
        try:
            answer.set_result(work())
        except BaseException as error:
            answer.set_exception(error)


def _within(seconds: float, done: Callable[[float], Any]) -> bool:
    """Return whether something is done within a time; `done` waits for at most its argument."""
    end = time.monotonic() + seconds
    while not done(min(_POLL, max(0.0, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


def _awaiting(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The frame of a coroutine, of the one that it awaits, and so on."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame, frame.f_lineno
        coroutine = coroutine.cr_await


def place_of(
    function: Callable[..., Any], frames: Iterable[tuple[FrameType, int | None]] = ()
) -> str:
    """A line of a message: the user's file and line, with the text of the line.

    Args:
        function: the user's.
        frames: where an exception passed, or what is running, with the line numbers. The last line
            in the function's own file counts, and without one the definition of the function.
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    if code is None:  # of C
        return ""
    file = code.co_filename
    for frame, line in reversed([*frames]):
        if frame.f_code.co_filename == file and line is not None:
            return (
                f"\n  at {file}, line {line}: {shown(linecache.getline(file, line).strip(), str)}"
            )
    return f"\n  at {file}, line {code.co_firstlineno}"


def shown(value: Any, write: Callable[[Any], str] = repr) -> str:
    """The first characters of the text of a value."""
    try:
        text = write(value)
    except BaseException:
        text = f"<unprintable {type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
