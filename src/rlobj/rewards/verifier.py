"""MathVerifier: is the final answer of a response equal to the gold answer?

    response -> extraction (one rule) -> text, integers, refusals (guards)
             -> reading and exact comparison (answers) -> cache -> numeric, math-verify in a worker

What needs more than exact arithmetic runs on the main thread of separate processes that are killed
at a hard deadline, so that any thread may ask, every question comes back, and what could not be
settled is undecided (`correct=None`) and never a silent "wrong".
"""

from __future__ import annotations

import importlib.util
import math
import queue
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from rlobj.answers.extraction import bare, extract_answer, last_box
from rlobj.answers.guards import decide, may_take_long
from rlobj.answers.settling import OPEN, Settler
from rlobj.base.errors import ConfigError, RunError
from rlobj.rewards.worker_process import Worker

__all__ = ["MathVerifier", "Verdict"]

_CACHE_SIZE = 100_000
_UNDECIDED_SECONDS = 60.0
"""How long a timeout is remembered: over one batch, but not over a busy hour of the machine."""

_Judged = tuple[bool | None, str]


@dataclass(frozen=True)
class Verdict:
    """What is known about one response."""

    correct: bool | None
    """True, False, or None = undecided."""
    answer: str | None
    """The final answer found in the response, or None."""
    reason: str
    """What decided, or why nothing could. Decided: `same text`, `integers`, `exact`, `numeric`,
    `math-verify`, `no answer`, `not readable: ...`, `refused: ...`. Undecided: `timeout`, `busy`,
    `crash`, `memory`, `error: ...`, `not settled`, `gold is empty`, `gold is prose`,
    `gold not readable`."""
    seconds: float
    """Time the comparison took, waiting for a free worker included."""


class MathVerifier:
    """Compares final answers with gold answers; safe to call from any thread.

    Use it as a context manager: entering starts the workers, leaving ends them. The final answer
    is found by the rule in `rlobj.answers.extraction`.

    Args:
        deadline: seconds a worker may take for one answer; then its process is killed and the
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
        self._deadline = deadline
        memory = int(memory_gib * 2**30)
        self._workers = [Worker(deadline, memory, recycle_after) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._open = False
        self._lock = threading.Lock()
        self._settler = Settler()
        self._cache: dict[tuple[str, str], tuple[_Judged, float]] = {}
        self._asking: dict[tuple[str, str], Future[_Judged]] = {}
        self.undecided: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._open = True
        self._cache.clear()
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
        return self._answered([(extract_answer(text), _unwrapped(gold)) for text, gold in pairs])

    def compare(self, answer: str, gold: str) -> Verdict:
        """Whether a final answer, already extracted, equals `gold`.

        Raises:
            RunError: the verifier is not open, or math-verify cannot be loaded.
        """
        return self.compare_many([(answer, gold)])[0]

    def compare_many(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict]:
        """`compare` for each (answer, gold), over all workers; verdicts in the order given."""
        return self._answered(
            [(_unwrapped(answer) or None, _unwrapped(gold)) for answer, gold in pairs]
        )

    def _answered(self, questions: list[tuple[str | None, str]]) -> list[Verdict]:
        self._require_open()
        known: dict[tuple[str | None, str], Verdict] = {}
        hard = []
        for question in dict.fromkeys(questions):
            started = time.perf_counter()
            judged = self._judge(*question)
            if judged is None:
                hard.append(question)
            else:
                known[question] = Verdict(
                    judged[0], question[0], judged[1], time.perf_counter() - started
                )
        if len(hard) < 2 or len(self._workers) == 1:
            known.update((question, self._timed(*question)) for question in hard)
        else:
            with ThreadPoolExecutor(len(self._workers)) as threads:
                asked = threads.map(self._timed, *zip(*hard, strict=True))
                known.update(zip(hard, asked, strict=True))
        found = [known[question] for question in questions]
        with self._lock:
            self.undecided.update(each.reason for each in found if each.correct is None)
        return found

    def _judge(self, answer: str | None, gold: str) -> _Judged | None:
        """What is decided here and now, or None if a worker must be asked."""
        if not gold:
            return None, "gold is empty"
        if answer is None:
            return False, "no answer"
        try:
            judged = decide(answer, gold) or self._settler.settle(answer, gold)
        except Exception as error:  # a mistake of ours is no mistake of the answer, nor ends a run
            return None, f"error: {type(error).__name__}"
        return None if judged == (None, OPEN) else judged

    def _timed(self, answer: str, gold: str) -> Verdict:
        started = time.perf_counter()
        correct, reason = self._ask_once(gold, answer)
        return Verdict(correct, answer, reason, time.perf_counter() - started)

    def _require_open(self) -> None:
        if not self._open:
            raise RunError("The verifier is not open. Use it as: with MathVerifier() as verifier:")

    def _ask_once(self, gold: str, answer: str) -> _Judged:
        """The answer of a worker, of the cache, or of whoever asks the same at this moment."""
        question = (gold, answer)
        with self._lock:
            judged, until = self._cache.get(question, (None, 0.0))
            if judged is not None and time.monotonic() < until:
                return judged
            asking = self._asking.get(question)
            if asking is None:
                mine = self._asking[question] = Future()
        if asking is not None:
            return asking.result()
        try:
            judged = self._ask(gold, answer)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(judged)
            self._remember(question, judged)
            return judged
        finally:
            with self._lock:
                del self._asking[question]

    def _remember(self, question: tuple[str, str], judged: _Judged) -> None:
        """Decided for good; undecided for a while, for a quieter machine may decide it."""
        decided = judged[0] is not None
        if judged[1] == "busy":
            return
        until = math.inf if decided else time.monotonic() + _UNDECIDED_SECONDS
        with self._lock:
            if len(self._cache) >= _CACHE_SIZE:
                self._cache.pop(next(iter(self._cache)))
            self._cache[question] = judged, until

    def _ask(self, gold: str, answer: str) -> _Judged:
        """What a worker says. Questions that may take long do not queue for more than a deadline,
        so that however many are asked at once, each comes back and the others get their turn."""
        try:
            worker = self._idle.get(timeout=self._deadline if may_take_long(answer) else None)
        except queue.Empty:
            return None, "busy"
        try:
            self._require_open()
            return worker.ask(gold, answer)
        finally:
            self._idle.put(worker)


def _unwrapped(text: str) -> str:
    return bare(last_box(text) or text)
