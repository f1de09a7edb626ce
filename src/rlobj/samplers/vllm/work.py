"""Requests to servers, some of which may come while others are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any

from rlobj.samplers.types import Feed


class Work:
    """The requests of one call, some of which may come while others are answered.

    Attributes:
        feed: where they come from.
        bodies: those that have come; empty when they are answered, as each turn of a conversation
            has all that was said.
        left: the numbers of those that are not answered.
        open: more may come.
    """

    def __init__(self, feed: Feed[dict[str, Any]]) -> None:
        self.feed, self.open = feed, True
        self.bodies: list[dict[str, Any]] = []
        self.left: set[int] = set()
        self._queue: deque[int] = deque()

    @property
    def answered(self) -> int:
        """The number of answers so far."""
        return len(self.bodies) - len(self.left)

    def begin(self) -> None:
        """Begin in this event loop with all requests that are left."""
        self._queue, loop = deque(sorted(self.left)), asyncio.get_running_loop()
        self._came = asyncio.Semaphore(0)  # a change wakes one of those that wait

        def woken() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: a new one begins anew
                loop.call_soon_threadsafe(self._came.release)

        self.feed.woken = woken

    def again(self, number: int) -> None:
        """Put a request back that a server did not answer."""
        self._queue.append(number)
        self._came.release()

    def settle(self, number: int) -> None:
        """Note that a request is answered."""
        self.left.discard(number)
        self.bodies[number] = {}

    def refill(self) -> None:
        """Take what has come."""
        new = self.feed.take() if self.open else []
        self.open = self.open and new is not None
        numbers = range(len(self.bodies), len(self.bodies) + len(new or ()))
        self.bodies += new or ()
        self.left.update(numbers)
        self._queue.extend(numbers)

    async def next(self) -> int | None:
        """The number of the next request; None if no more will come."""
        while True:
            self.refill()
            if self._queue:
                return self._queue.popleft()
            if not self.open:
                self._came.release()  # the others that wait end, too
                return None
            await self._came.acquire()
