"""Calls of a user's function that may fail or never return.

The function runs in a daemon thread of its own: one call after another, or many at a time if it is
`async`. A call that has not returned at its deadline is given up. Its thread is asked to end and
is never used again, so that a late result reaches nobody, and the process can end without it.

A call that keeps Python's own lock, as a regular expression may for years, stops all threads, and
the signals of the process with them. Then only the process can be ended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import faulthandler
import functools
import inspect
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

_POLL = 1.0
"""Seconds between two looks at whether the thread of `async` calls still answers."""

_STANDSTILL = 30.0
"""Seconds after a deadline at which a process that executes no Python is ended."""
MOST_HANGING = 100
"""Calls that may hang at the same time. Each keeps a thread."""

Call = tuple[Sequence[Any], Mapping[str, Any]]
"""Positional and named arguments."""


@dataclass(frozen=True)
class Outcome:
    """What became of a call.

    Attributes:
        value: the result.
        error: the exception that the function raised, or None; also SystemExit.
        late: the call had not returned at its deadline.
        place: the user's file and line that raised the exception, or that was running then.
    """

    value: Any = None
    error: BaseException | None = None
    late: bool = False
    place: str = ""


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
        self._left: list[_Worker | _Loop] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def hanging(self) -> int:
        """The number of calls that were given up and have not returned yet."""
        self._left = [worker for worker in self._left if worker.thread.is_alive()]
        return len(self._left) + len(self._tasks)

    def outcomes(self, calls: Sequence[Call]) -> Generator[Outcome]:
        """Make the calls; what became of each, in their order. Close this generator."""
        with _WATCH.over(self.deadline):
            yield from self._together(calls) if self._is_async else map(self._one, calls)

    def close(self) -> None:
        """Let the thread end; the next call starts another one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _give_up(self, worker: _Worker | _Loop) -> str:
        """Leave a thread alone, and ask it to end; return what it is doing."""
        frame = sys._current_frames().get(worker.thread.ident or 0)
        place = place_of(self.function, frame)
        worker.end()
        raised = ctypes.py_object(_GivenUp)  # at the next line of Python that it executes
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.thread.ident or 0), raised)
        self._left.append(worker)
        self._worker = None
        return place

    def _one(self, call: Call) -> Outcome:
        """Call a function that is not `async`."""
        with self._lock:
            worker = self._worker = self._worker or _Worker()
            assert isinstance(worker, _Worker)
            asked: concurrent.futures.Future[Any] = concurrent.futures.Future()
            worker.asked.put((self.function, call, asked))
            _WATCH.renew()
            try:
                error = asked.exception(self.deadline)
            except TimeoutError:
                return Outcome(late=True, place=self._give_up(worker))
        if error is not None:
            return Outcome(error=error, place=place_of(self.function, error.__traceback__))
        return Outcome(asked.result())

    def _together(self, calls: Sequence[Call]) -> Iterator[Outcome]:
        """Call an `async` function."""
        found: dict[int, Outcome] = {}
        while rest := [i for i in range(len(calls)) if i not in found]:
            with self._lock:
                worker = self._worker = self._worker or _Loop()
            assert isinstance(worker, _Loop)
            begun: set[int] = set()
            work = self._all({i: calls[i] for i in rest}, begun, found)
            done = asyncio.run_coroutine_threadsafe(work, worker.loop)
            while not concurrent.futures.wait([done], _POLL).done:
                answered, known = threading.Event(), len(found)
                worker.loop.call_soon_threadsafe(answered.set)
                _WATCH.renew()
                if not answered.wait(self.deadline) and len(found) == known:
                    late = Outcome(late=True, place=self._give_up(worker))  # it never awaits
                    begun = set(rest) if self.hanging > MOST_HANGING else begun
                    found.update(dict.fromkeys(begun - found.keys(), late))
                    break
        return iter([found[i] for i in range(len(calls))])

    async def _all(
        self, calls: Mapping[int, Call], begun: set[int], found: dict[int, Outcome]
    ) -> None:
        gate = asyncio.Semaphore(self._concurrency)

        async def awaited(index: int, call: Call) -> None:
            begun.add(index)
            try:
                outcome = Outcome(await self.function(*call[0], **call[1]))
            except BaseException as error:
                outcome = Outcome(error=error, place=place_of(self.function, error.__traceback__))
            found.setdefault(index, outcome)

        async def one(index: int, call: Call) -> None:
            async with gate:
                task = asyncio.ensure_future(awaited(index, call))
                if not (await asyncio.wait({task}, timeout=self.deadline))[0]:
                    frames = task.get_stack(limit=1)
                    place = place_of(self.function, frames[0] if frames else None)
                    found.setdefault(index, Outcome(late=True, place=place))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                    task.cancel()

        await asyncio.gather(*(one(*each) for each in calls.items()))


class _Watch:
    """Prints the stacks of all threads and ends the process if it executes no Python any more.

    `faulthandler` waits in a thread that needs no lock of Python. To start it takes as long as some
    calls, so it is started at most once a second.
    """

    def __init__(self) -> None:
        self._lock, self._deadlines, self._renewed = threading.Lock(), list[float](), -math.inf

    @contextlib.contextmanager
    def over(self, deadline: float) -> Iterator[None]:
        """Inside, `renew` is called at least once in a deadline."""
        with self._lock:
            self._deadlines.append(deadline)
        self.renew(at_once=True)
        try:
            yield
        finally:
            with self._lock:
                self._deadlines.remove(deadline)
                if not self._deadlines:
                    faulthandler.cancel_dump_traceback_later()

    def renew(self, at_once: bool = False) -> None:
        """Wait anew."""
        with self._lock:
            if at_once or time.monotonic() > self._renewed + _POLL:
                seconds, stderr = max(self._deadlines) + _STANDSTILL, 2  # sys.stderr may be no file
                faulthandler.dump_traceback_later(seconds, exit=True, file=stderr)
                self._renewed = time.monotonic()


_WATCH = _Watch()


class _Worker:
    """A daemon thread that makes one call after another."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="reward", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        while (asked := self.asked.get()) is not None:
            _answer(*asked)

    def end(self) -> None:
        """End the thread after the call in progress."""
        self.asked.put(None)


class _Loop:
    """A daemon thread with an event loop, which stays the same for all calls."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Daemons())
        self.thread = threading.Thread(target=self._serve, name="reward", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def end(self) -> None:
        """Stop the loop when it is free."""
        self.loop.call_soon_threadsafe(self.loop.stop)


class _Daemons(concurrent.futures.ThreadPoolExecutor):
    """The threads of `asyncio.to_thread`; the process can end while one of them hangs."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        answer: concurrent.futures.Future[Any] = concurrent.futures.Future()
        threading.Thread(target=_answer, args=(fn, (args, kwargs), answer), daemon=True).start()
        return answer


def _answer(function: Callable[..., Any], call: Call, answer: Any) -> None:
    """Set the result of a call, or what it raised."""
    try:
        result = function(*call[0], **call[1])
    except BaseException as error:
        answer.set_exception(error)
    else:
        answer.set_result(result)


def place_of(function: Callable[..., Any], at: TracebackType | FrameType | None) -> str:
    """The user's file and line, with the text of the line.

    Args:
        function: the user's.
        at: where an exception passed, or what is running. The last line in the function's own file
            counts, and without one the definition of the function.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
    if code is None:  # of C
        return ""
    lines: Sequence[traceback.FrameSummary] = ()
    if isinstance(at, TracebackType):
        lines = traceback.extract_tb(at)
    elif at is not None:
        lines = traceback.extract_stack(at)
    for line in reversed(lines):
        if line.filename == code.co_filename:
            return f"{line.filename}, line {line.lineno}: {line.line}"
    return f"{code.co_filename}, line {code.co_firstlineno}"
