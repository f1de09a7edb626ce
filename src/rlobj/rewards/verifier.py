"""MathVerifier: is the final answer of a response equal to the gold answer?

    response -> extraction (one rule) -> text, integers, guards -> cache -> math-verify in a worker

math-verify runs on the main thread of separate processes that are killed at a hard deadline, so
that any thread may ask, every question comes back, and what could not be settled is undecided
(`correct=None`) and never a silent "wrong".
"""

from __future__ import annotations

import importlib.util
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from rlobj.errors import ConfigError, RunError
from rlobj.rewards.extraction import bare, extract_answer, last_box
from rlobj.rewards.guards import decide
from rlobj.rewards.process import Worker

__all__ = ["MathVerifier", "Verdict"]

_CACHE_SIZE = 100_000


@dataclass(frozen=True)
class Verdict:
    """What is known about one response."""

    correct: bool | None
    """True, False, or None = undecided."""
    answer: str | None
    """The final answer found in the response, or None."""
    reason: str
    """What decided, or why nothing could. Decided: `same text`, `integers`, `math-verify`,
    `no answer`, `refused: ...`. Undecided: `timeout`, `crash`, `memory`, `error: ...`,
    `gold is empty`, `gold not parsed`."""
    seconds: float
    """Time the comparison took, waiting for a free worker included."""


class MathVerifier:
    """Compares final answers with gold answers; safe to call from any thread.

    Use it as a context manager: entering starts the workers, leaving ends them. The final answer
    is found by the rule in `rlobj.rewards.extraction`.

    Args:
        deadline: seconds math-verify may take for one answer; then its process is killed and the
            answer is undecided. Starting a process does not count.
        workers: processes, hence answers checked at the same time.
        memory_gib: limit on the address space of a worker, in GiB.
        recycle_after: answers after which a worker is replaced by a fresh one (sympy's caches
            grow).

    Attributes:
        undecided: how many responses were left undecided, by reason, since it was opened.

    Example:
        >>> with MathVerifier() as verifier:
        ...     verifier.verify("So it is \\\\boxed{2^{10}}.", "1024").correct
        True

    Raises:
        ConfigError: math-verify is not installed, or a setting is not positive.
    """

    def __init__(
        self,
        deadline: float = 5.0,
        workers: int = 1,
        *,
        memory_gib: float = 4.0,
        recycle_after: int = 1000,
    ) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError(
                "Checking mathematics needs the package 'math-verify'. "
                "Install it with: pip install 'math-verify[antlr4_13_2]'"
            )
        if deadline <= 0 or workers < 1 or memory_gib <= 0 or recycle_after < 1:
            raise ConfigError(
                "MathVerifier expects deadline and memory_gib above 0, workers and recycle_after "
                f"of at least 1; got deadline={deadline}, workers={workers}, "
                f"memory_gib={memory_gib}, recycle_after={recycle_after}."
            )
        memory = int(memory_gib * 2**30)
        self._workers = [Worker(deadline, memory, recycle_after) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._open = False
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, str], tuple[bool | None, str]] = {}
        self.undecided: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._open = True
        self._idle = queue.SimpleQueue()
        for worker in self._workers:
            worker.start()
            self._idle.put(worker)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, once the questions under way are answered."""
        if not self._open:
            return
        self._open = False
        for worker in [self._idle.get() for _ in self._workers]:
            worker.stop()
            self._idle.put(worker)

    @property
    def process_ids(self) -> list[int]:
        """Ids of the worker processes."""
        return [worker.pid for worker in self._workers if worker.pid is not None]

    def verify(self, response: str, gold: str) -> Verdict:
        """Whether the final answer of `response` equals `gold`.

        Args:
            response: all of the text that was generated.
            gold: the right answer in LaTeX; `$...$` and `\\boxed{...}` around it are taken off.

        Raises:
            RunError: the verifier is not open, or math-verify cannot be loaded.
        """
        return self.verify_many([(response, gold)])[0]

    def verify_many(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """`verify` for each (response, gold), over all workers; verdicts in the order given.

        Equal answers to equal golds are checked once.
        """
        questions = [(extract_answer(text), bare(last_box(gold) or gold)) for text, gold in pairs]
        unique = list(dict.fromkeys(questions))
        if len(self._workers) == 1 or len(unique) == 1:
            verdicts = [self._judge(*question) for question in unique]
        else:
            with ThreadPoolExecutor(len(self._workers)) as threads:
                verdicts = list(threads.map(self._judge, *zip(*unique, strict=True)))
        known = dict(zip(unique, verdicts, strict=True))
        found = [known[question] for question in questions]
        with self._lock:
            self.undecided.update(each.reason for each in found if each.correct is None)
        return found

    def _judge(self, answer: str | None, gold: str) -> Verdict:
        started = time.perf_counter()
        self._require_open()
        if not gold:
            correct, reason = None, "gold is empty"
        elif answer is None:
            correct, reason = False, "no answer"
        else:
            known = decide(answer, gold) or self._cache.get((gold, answer))
            correct, reason = known or self._ask(gold, answer)
        return Verdict(correct, answer, reason, time.perf_counter() - started)

    def _require_open(self) -> None:
        if not self._open:
            raise RunError("The verifier is not open. Use it as: with MathVerifier() as verifier:")

    def _ask(self, gold: str, answer: str) -> tuple[bool | None, str]:
        worker = self._idle.get()
        try:
            self._require_open()
            judged = worker.ask(gold, answer)
        finally:
            self._idle.put(worker)
        if judged[0] is not None:  # what was undecided may be decided on a quieter machine
            with self._lock:
                if len(self._cache) >= _CACHE_SIZE:
                    self._cache.pop(next(iter(self._cache)))
                self._cache[gold, answer] = judged
        return judged
