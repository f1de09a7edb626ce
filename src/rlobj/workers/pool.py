"""Worker processes that answer alike, and the count of calls that fail."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from rlobj.base.errors import RunError, counted
from rlobj.workers.worker import Worker

logger = logging.getLogger(__name__)

RECENT = 1000
"""The last calls, among which failures are counted."""
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Pool:
    """Worker processes that answer alike. Any thread may ask; it waits for a free process.

    A process starts when it is first needed.

    Args:
        size: number of processes.
        worker: the arguments of each `Worker`.

    Attributes:
        slow: number of slow questions that are being answered.
    """

    def __init__(self, size: int, *worker: Any, **limits: Any) -> None:
        self.workers = [Worker(*worker, **limits) for _ in range(size)]
        self._idle = list(self.workers)
        self._changed = threading.Condition()  # of the fields around it
        self._quick = self.slow = 0  # quick questions that wait, slow ones at a worker

    def start(self) -> None:
        """Start all processes, without waiting for them."""
        for worker in self.workers:
            worker.closed = False
            worker.start()

    def close(self) -> None:
        """End all processes. Later questions raise `RunError`."""
        for worker in self.workers:
            worker.closed = True
            worker.kill()

    def wait(self) -> None:
        """Wait until no question is being answered."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._idle) == len(self.workers))

    @contextmanager
    def worker(self, slow: bool = False) -> Iterator[Worker]:
        """A process that is free.

        Slow questions must not block the others. They leave one process free if there are several,
        and they let waiting quick questions pass.
        """
        most = max(1, len(self.workers) - 1)
        with self._changed:
            self._quick += not slow
            try:
                self._changed.wait_for(
                    lambda: self._idle and not (slow and (self._quick or self.slow >= most))
                )
            finally:  # also after an interrupt
                self._quick -= not slow
            self.slow += slow
            worker = self._idle.pop()
        try:
            yield worker
        finally:
            with self._changed:
                self._idle.append(worker)
                self.slow -= slow
                self._changed.notify_all()

    def map(
        self, ask: Callable[[Worker, Question], Answer], questions: Sequence[Question]
    ) -> list[Answer]:
        """Ask all questions, each of one worker; the answers in their order."""

        def answer(question: Question) -> Answer:
            with self.worker() as worker:
                return ask(worker, question)

        with ThreadPoolExecutor(len(self.workers)) as threads:
            return list(threads.map(answer, questions))


class Failures:
    """Counts calls of a user's code that failed, among the last 1,000.

    Args:
        setting: the name of `allowed`, for messages.
        allowed: calls that may fail.
    """

    def __init__(self, setting: str, allowed: int) -> None:
        self._setting, self._allowed = setting, allowed
        self._failed: deque[bool] = deque(maxlen=RECENT)
        self._warned: set[str] = set()

    def add(self, message: str, kind: str = "") -> None:
        """Count a call; the message says how it failed, and is empty if it did not.

        Of each kind, the first message is shown.

        Raises:
            RunError: too many calls have failed.
        """
        self._failed.append(bool(message))
        number = sum(self._failed)
        if message and number > self._allowed:
            seen = f"{number} of the last {counted(len(self._failed), 'call')} failed; "
            seen *= number > 1
            raise RunError(f"{message}\n{seen}{self._setting} is {self._allowed}.")
        if message:
            self.warn(f"{message}\nThe response is undecided", kind)

    def warn(self, message: str, kind: str) -> None:
        """Show the first message of a kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s. This is not shown again.", message)
