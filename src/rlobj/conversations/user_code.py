"""Calls of the user's code: functions in threads, and their awaitables on the event loop."""

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from rlobj.base.showing import place_of_error, shown
from rlobj.base.threads import DaemonThreads
from rlobj.conversations.environment import Adapter, name_of
from rlobj.workers.worker import Failure, NoReply

_THREADS = DaemonThreads()


async def called(function: Callable[[], Any], name: str, deadline: float, on: str = "") -> Any:
    """What a function of the user's returns, or what comes of the awaitable that it returns.

    The function runs in a thread, as long as it takes. Its awaitable runs on this event loop.

    Args:
        function: the user's.
        name: of the function, for the message.
        deadline: of the awaitable, in seconds.
        on: what it is called for, such as " on problem '3'".

    Raises:
        NoReply: it raised an exception, or the awaitable is late.
    """

    def attempt() -> tuple[Any, BaseException | None]:
        try:
            return function(), None
        except BaseException as error:  # a future cannot hold a StopIteration
            return None, error

    limit = asyncio.timeout(deadline)
    try:
        value, error = await asyncio.wrap_future(_THREADS.submit(attempt))
        if error is not None:
            raise error
        if inspect.isawaitable(value):
            async with limit:
                value = await value
        return value
    except (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the run ends
            raise
        if limit.expired():
            raise NoReply(Failure.TIMEOUT, f"{name} {late_text(deadline, on)}") from error
        what = f"{type(error).__name__}: {shown(error, str)}{place_of_error(error)}"
        raise NoReply("error", f"{name} failed{on}: {what}") from error


def late_text(deadline: float, on: str) -> str:
    """What a call did that reached its deadline."""
    return f"did not return within {deadline:g} seconds{on}. environment.deadline sets this limit"


async def asked(
    environment: Any, method: str, *arguments: Any, deadline: float, on: str = ""
) -> Any:
    """What a method of an environment returns; the other arguments and errors are of `called`."""
    function = partial(getattr(environment, method), *arguments)
    if isinstance(environment, Adapter):  # each call of the user's in it is one of `called`
        return await function()
    return await called(function, f"{name_of(environment)}.{method}", deadline, on)
