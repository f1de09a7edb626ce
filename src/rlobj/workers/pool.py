"""Worker processes that answer alike, and the count of calls that fail."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import LifoQueue
from typing import Any, Self, TypeVar

from rlobj.base.errors import RunError, counted, warn
from rlobj.base.targets import trusted_target
from rlobj.workers.worker import Worker

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
    """

    def __init__(self, size: int, *worker: Any, **limits: Any) -> None:
        self.workers = [Worker(*worker, **limits) for _ in range(size)]
        self._idle = LifoQueue[Worker]()
        for one in self.workers:
            self._idle.put(one)

    @classmethod
    def importing(cls, target: str, worker: str, memory: int = 0, **arguments: Any) -> Self:
        """One process that imports a person's code, which may take as long as it takes.

        Args:
            target: what is imported, and the argument `target` of what answers.
            worker: what answers in the process.
            memory: limit on its address space, in bytes; 0 = none.
            arguments: of what answers, beside the target.

        Raises:
            ConfigError: it may not be imported.
        """
        trusted_target(target)
        arguments = {"target": target, **arguments}
        return cls(1, worker, arguments, memory=memory, start_seconds=float("inf"))

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

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """A process that is free."""
        worker = self._idle.get()
        try:
            yield worker
        finally:
            self._idle.put(worker)

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
            warn("%s. This is not shown again.", message)
