"""Calls of the user's code, which may hang: each ends at its deadline, whatever the code does.

A function runs in a daemon thread. If it returns an awaitable, this runs on an event loop in
another daemon thread. The loop that waits runs none of the user's code, so its deadlines hold.
Python cannot end a thread: in one that is late, `SystemExit` is raised, which ends Python code that
does not catch it; one that waits in compiled code is left alone. Late results reach nobody. All
awaitables share one loop, since objects of the user's may belong to it. If a call blocks it, a
fresh loop takes over those that have not begun.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import faulthandler
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from rlobj.base.errors import RlobjError
from rlobj.base.showing import place_of_error, shown
from rlobj.base.threads import DaemonThreads

_THREADS = DaemonThreads()
_LOCK = threading.Lock()
_TICK = 0.5
"""Seconds between two signs of life of a loop that is idle or waits."""
_POLL = 1.0
_STANDSTILL = 30.0
"""Seconds after a deadline at which a process that executes no Python prints where it stands."""


class Failed(Exception):
    """The user's code failed.

    Attributes:
        why: "timeout" or "error".
        text: of the exception, with its file and line.
        deadline: seconds.
        counts: False if another call blocked the loop.
        method: that was called, if it is another one than the caller knows.
    """

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(text)
        self.why, self.text, self.deadline, self.counts, self.method = why, text, 0.0, True, ""

    def described(self, name: str, on: str = "") -> str:
        """What happened, in words.

        Args:
            name: of what was called.
            on: what it was called for, such as " on problem '3'".
        """
        if self.why == "timeout":
            within = f"within {self.deadline:g} seconds{on}"
            return f"{name} did not return {within}. environment.deadline sets this limit"
        return f"{name} failed{on}: {self.text}"


_Read = Callable[[Any], Any]


def _as_it_is(value: Any) -> Any:
    return value


async def called(function: Callable[[], Any], deadline: float, read: _Read = _as_it_is) -> Any:
    """What a function of the user's returns, or what comes of the awaitable that it returns.

    Args:
        function: it also looks up the user's attributes, which may be properties.
        deadline: seconds.
        read: turns the result into plain data: this may call methods of the user's, too.

    Raises:
        Failed: it raised an exception of any kind, or is late. A late result is none.
        RlobjError: of `read`.
    """
    call = _Call(function, read)
    try:
        outcome = await _within(_THREADS.submit(call.run), deadline)
        if isinstance(outcome.value, _Awaited):
            outcome = await _on_loop(outcome.value, deadline - outcome.seconds)
        return outcome.result()
    except Failed as failed:
        failed.deadline = deadline
        call.interrupt()
        raise


def called_now(function: Callable[[], Any], deadline: float, read: _Read = _as_it_is) -> Any:
    """As `called`, of a function that returns no awaitable; where there is no event loop."""
    call, end = _Call(function, read), time.monotonic() + deadline
    work = _THREADS.submit(call.run)
    try:
        while not work.done():  # a signal that comes just before a wait is handled after it
            if (left := end - time.monotonic()) <= 0:
                raise Failed("timeout")
            concurrent.futures.wait([work], timeout=min(1.0, left))
        value = work.result().result()
        if isinstance(value, _Awaited):
            value.close()
            raise Failed("error", "it returns an awaitable; expected a function without async")
        return value
    except Failed as failed:
        failed.deadline = deadline
        call.interrupt()
        raise


def release(objects: list[Any]) -> None:
    """Drop the last references to objects of the user's in a thread: `__del__` may hang, too.

    Args:
        objects: the caller has no other reference to them. The list is empty later.
    """
    _THREADS.submit(objects.clear)


@contextlib.contextmanager
def standstill_shown(deadline: float) -> Iterator[None]:
    """Inside, the stacks of all threads are printed if the process executes no Python any more.

    Compiled code that keeps Python's own lock stops all threads, and the signals of the process
    with them. Only the timer of `faulthandler` goes on, which needs no lock.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL):
            stderr = 2  # sys.stderr may be no file
            faulthandler.dump_traceback_later(deadline + _STANDSTILL, file=stderr)
        faulthandler.cancel_dump_traceback_later()

    threading.Thread(target=watch, name="standstill", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@dataclass(frozen=True)
class _Outcome:
    """What became of a call: a value, the text of an exception, or the error of `read`."""

    seconds: float
    value: Any = None
    text: str = ""
    refusal: RlobjError | None = None

    def result(self) -> Any:
        """The value.

        Raises:
            Failed, RlobjError: there is none.
        """
        if self.text:
            raise Failed("error", self.text)
        if self.refusal is not None:
            raise self.refusal
        return self.value


class _Call:
    """A call in a thread."""

    def __init__(self, function: Callable[[], Any], read: _Read) -> None:
        self._function, self._read = function, read
        self._thread: int | None = None

    def run(self) -> _Outcome:
        """Call the function."""
        with _LOCK:
            self._thread = threading.get_ident()
        try:
            return self._outcome()
        finally:
            with _LOCK:
                self._thread = None

    def _outcome(self) -> _Outcome:
        begun = time.monotonic()
        try:
            value = self._function()
            if inspect.isawaitable(value):
                return _Outcome(time.monotonic() - begun, _Awaited(value, self._read))
        except BaseException as error:
            return _raised(error, begun)
        return _read(value, self._read, begun)

    def interrupt(self) -> None:
        """End it, if it still runs and is Python code."""
        with _LOCK:
            _raise_exit(self._thread)


def _raise_exit(thread: int | None) -> None:
    """Raise `SystemExit` in a thread, when it executes Python code next."""
    if thread is not None:
        number, error = ctypes.c_ulong(thread), ctypes.py_object(SystemExit)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, error)


def _read(value: Any, read: _Read, begun: float) -> _Outcome:
    try:
        data = read(value)
        return _Outcome(time.monotonic() - begun, data)
    except RlobjError as error:
        return _Outcome(time.monotonic() - begun, refusal=error)
    except BaseException as error:
        return _raised(error, begun)


def _raised(error: BaseException, begun: float) -> _Outcome:
    text = f"{type(error).__name__}: {shown(error, str)}"  # which may be slow, too
    return _Outcome(time.monotonic() - begun, text=text + place_of_error(error))


async def _within(work: Future[_Outcome], deadline: float) -> _Outcome:
    """The outcome of a call that has begun.

    Raises:
        Failed: it is late, even if it has ended since.
    """
    future = asyncio.wrap_future(work)
    try:
        done, _ = await asyncio.wait({future}, timeout=deadline)
        if done and (outcome := future.result()).seconds <= deadline:
            return outcome
        raise Failed("timeout")
    finally:
        future.cancel()  # a late result is not waited for


class _Awaited:
    """An awaitable of the user's.

    Attributes:
        loop: that it runs on, or waits for.
        begun, ended: are set in the thread of the loop.
    """

    def __init__(self, awaitable: Awaitable[Any], read: _Read) -> None:
        self._awaitable, self._read = awaitable, read
        self.loop: _Loop | None = None
        self._task: asyncio.Task[None] | None = None
        self.begun, self.ended = Future[None](), Future[_Outcome]()

    async def run(self, loop: _Loop) -> None:
        """Await it, unless another loop has taken it; nothing is raised."""
        with _LOCK:
            if self not in loop.waiting:
                return
            loop.waiting.discard(self)
            self._task = asyncio.current_task()
        begun = loop.moved = time.monotonic()
        self.begun.set_result(None)
        try:
            value = await self._awaitable
        except BaseException as error:
            outcome = _raised(error, begun)
        else:
            outcome = _read(value, self._read, begun)
        loop.moved = time.monotonic()
        with contextlib.suppress(InvalidStateError):  # nobody waits any more
            self.ended.set_result(outcome)

    def cancelled(self, loop: _Loop, task: asyncio.Task[None]) -> None:
        """End as failed if its task was cancelled before `run` began, as another call can do."""
        with _LOCK:
            if not task.cancelled() or self not in loop.waiting:
                return
            loop.waiting.discard(self)
        self.close()
        self.ended.set_result(_Outcome(0.0, text="CancelledError: another call cancelled it"))
        self.begun.set_result(None)

    def kept_waiting(self) -> bool:
        """Whether another task blocks the loop."""
        assert self.loop is not None
        running = asyncio.current_task(self.loop.loop)
        silent = time.monotonic() > self.loop.moved + 2 * _TICK
        return silent and running is not None and running is not self._task

    def give_up(self) -> None:
        """Cancel it; one that has not begun never begins."""
        assert self.loop is not None
        if self._task is not None and asyncio.current_task(self.loop.loop) is self._task:
            self.loop.leave()
        with _LOCK:
            self.loop.waiting.discard(self)
        if self._task is not None:
            self.loop.soon(self._task.cancel)
        else:
            self.close()

    def close(self) -> None:
        """Say that nobody will await it."""
        if inspect.iscoroutine(self._awaitable):
            self._awaitable.close()


async def _on_loop(awaited: _Awaited, deadline: float) -> _Outcome:
    """Await on the loop of the user's awaitables; the deadline counts from when this begins.

    Raises:
        Failed: it is late.
    """
    pause, silent, seen = min(1.0, deadline / 4), 0.0, 0.0
    _sound_loop().take(awaited)
    begun = asyncio.wrap_future(awaited.begun)
    try:
        while not (await asyncio.wait({begun}, timeout=pause))[0]:
            loop = awaited.loop
            assert loop is not None
            silent = silent + pause if loop.moved == seen else 0.0
            seen = loop.moved
            if silent >= deadline or not loop.sound():
                loop.leave()
        return await _within(awaited.ended, deadline)
    except Failed as late:
        late.counts = not awaited.kept_waiting()
        awaited.give_up()
        raise
    except asyncio.CancelledError:
        awaited.give_up()
        raise


class _Loop:
    """An event loop in a daemon thread.

    Attributes:
        moved: when it last did something.
        waiting: what has not begun.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonThreads())  # the end of the program waits for others
        self.moved, self.waiting, self._left = time.monotonic(), set[_Awaited](), False
        self._thread = threading.Thread(target=self._run, name="environments", daemon=True)
        self._thread.start()

    def sound(self) -> bool:
        """Whether it may take more: it is not left, and the user's code has not closed it."""
        return self._thread.is_alive() and not self._left and not self.loop.is_closed()

    def take(self, awaited: _Awaited) -> None:
        """Begin to await, as soon as the loop is free."""
        awaited.loop = self
        self.waiting.add(awaited)
        self.soon(self._begin, awaited)

    def soon(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function in the loop, if it still runs."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def leave(self) -> None:
        """Let a fresh loop take over what has not begun, and end what blocks this one."""
        with _LOCK:
            self._left, waiting = True, [*self.waiting]
            self.waiting.clear()
        if self._thread.is_alive():
            _raise_exit(self._thread.ident)
        for awaited in waiting:
            _sound_loop().take(awaited)

    def _begin(self, awaited: _Awaited) -> None:
        # Not `create_task`: the user's code may have set a factory of tasks.
        task = asyncio.Task(awaited.run(self), loop=self.loop)
        task.add_done_callback(lambda task: awaited.cancelled(self, task))

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.soon(self._tick)
        while not self.loop.is_closed():  # the user's code may stop it, or exit in a task
            with contextlib.suppress(BaseException):
                self.loop.run_forever()

    def _tick(self) -> None:
        self.moved = time.monotonic()
        self.loop.call_later(_TICK, self._tick)


_loop: _Loop | None = None


def _sound_loop() -> _Loop:
    """The loop of the user's awaitables."""
    global _loop
    with _LOCK:
        if _loop is None or not _loop.sound():  # or this process is a fork
            _loop = _Loop()
        return _loop
