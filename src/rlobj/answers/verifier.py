"""Decide whether the final answer of a response equals the gold answer.

    response -> extract the answer -> compare text and integers, refuse large answers (guards)
             -> parse and compare exactly -> cache -> numeric comparison and math-verify (worker)

Everything beyond exact arithmetic runs in separate worker processes, which end at a deadline. So
any thread can call the verifier and every call returns. An answer that cannot be read or compared
is wrong: if it were undecided, a policy would learn to write such answers. `correct=None`,
undecided, is left for a bad gold answer and for a machine that fails.
"""

import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from rlobj.answers.equivalence import NOT_SETTLED, check_equivalence, decide, may_take_long
from rlobj.answers.extraction import bare, extract_answer, last_box
from rlobj.answers.version import DEADLINE, MEMORY_GIB, verifier_version
from rlobj.workers.pool import Pool

_CACHE_SIZE = 100_000
_Decision = tuple[bool | None, str]


@dataclass(frozen=True)
class Verdict:
    """The result for one response."""

    correct: bool | None
    """True, False, or None = undecided."""
    answer: str | None
    """The final answer found in the response, or None."""
    reason: str
    """The layer that decided: `same text`, `integers`, `exact`, `numeric`, `math-verify`. Or why
    the answer is wrong without a comparison: `no answer`, `not an answer` (words),
    `not readable: ...`, `too large: ...`, `not settled`, `timeout`, `crash`, `memory`,
    `error: ...`. Or why it is undecided: `gold is empty`, `gold is prose`, `gold not readable`, or
    `gold` and one of the others, if the gold answer is not equal to itself within the limits."""
    seconds: float
    """Time of the comparison, including the wait for a free worker."""


class MathVerifier:
    """Compares final answers with gold answers; safe to call from any thread.

    Use it as a context manager: entering starts the workers, leaving ends them. The module
    `rlobj.answers.extraction` has the rule that finds the final answer. `verify` is the short form
    for one response.

    Args:
        deadline: time limit for one answer, in seconds of processor time, so that neither a busy
            machine nor the wait for a worker changes a verdict. After that, the worker ends and the
            answer is wrong. The start of a process does not count.
        workers: number of processes, and of answers compared at the same time.
        memory_gib: limit on the address space of a worker, in GiB.
        recycle_after: number of answers after which a worker is replaced, because sympy's caches
            grow.

    Attributes:
        version: the `verifier_version` of its limits.

    Example:
        >>> with MathVerifier() as verifier:
        ...     verifier.verify("So it is \\\\boxed{2^{10}}.", "1024").correct
        True

    """

    def __init__(
        self,
        deadline: float = DEADLINE,
        workers: int = 1,
        *,
        memory_gib: float = MEMORY_GIB,
        recycle_after: int = 1000,
    ) -> None:
        self.version, memory = verifier_version(deadline, memory_gib), int(memory_gib * 2**30)
        self._pool = Pool(
            workers,
            "rlobj.answers.worker:Comparer",
            memory=memory,
            processor_seconds=deadline,
            recycle_after=recycle_after,
        )
        self._asked: dict[tuple[str, str], _Decision] = {}

    def __enter__(self) -> Self:
        self._asked.clear()
        self._pool.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Comparisons in progress raise RunError."""
        self._pool.close()

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in self._pool.workers if worker.pid is not None]

    def verify(self, response: str | None, gold: str | float | None) -> Verdict:
        """Return whether the final answer of `response` equals `gold`.

        Args:
            response: the whole generated text; None has no answer.
            gold: the gold answer in LaTeX, or a number; `$...$` and `\\boxed{...}` are removed.

        Raises:
            RunError: the verifier is closed.
            ConfigError: math-verify cannot be loaded.
        """
        return self.verify_many([(response, gold)])[0]

    def verify_many(self, pairs: Sequence[tuple[str | None, str | float | None]]) -> list[Verdict]:
        """Call `verify` for each (response, gold) on all workers; return verdicts in this order.

        A pair that occurs several times is compared once.
        """
        return self._verdicts(
            [
                (None if text is None else extract_answer(str(text)), _unwrapped(gold))
                for text, gold in pairs
            ]
        )

    def compare(self, answer: str, gold: str | float | None) -> Verdict:
        """Return whether a final answer, already extracted, equals `gold`.

        Raises:
            RunError: the verifier is closed.
            ConfigError: math-verify cannot be loaded.
        """
        return self._verdicts([(_unwrapped(answer) or None, _unwrapped(gold))])[0]

    def _verdicts(self, questions: list[tuple[str | None, str]]) -> list[Verdict]:
        verdicts = {
            question: _timed(self._decide_here, question) for question in dict.fromkeys(questions)
        }
        waiting = [question for question, verdict in verdicts.items() if verdict is None]
        ask = functools.partial(_timed, self._ask_once)
        if len(waiting) == 1:  # without a thread, which cannot be started while the program ends
            verdicts[waiting[0]] = ask(waiting[0])
        elif waiting:
            waiting.sort(key=lambda question: may_take_long(question[0] or ""))
            with ThreadPoolExecutor(len(self._pool.workers)) as threads:
                verdicts.update(zip(waiting, threads.map(ask, waiting), strict=True))
        return [verdicts[question] for question in questions]

    def _decide_here(self, answer: str | None, gold: str) -> _Decision | None:
        """Decide without a worker; None if a worker is needed."""
        if not gold:
            return None, "gold is empty"
        if answer is None:
            return False, "no answer"
        try:
            decision = decide(answer, gold) or check_equivalence(answer, gold)
        except Exception:  # the worker meets the same error, and then checks the gold answer
            return None
        return None if decision == (None, NOT_SETTLED) else decision

    def _ask_once(self, answer: str, gold: str) -> _Decision:
        """Ask a worker, unless the same was asked before.

        Undecided answers are asked again: later, the machine may work.
        """
        if (answer, gold) in self._asked:
            return self._asked[answer, gold]
        with self._pool.worker() as worker:
            correct, reason = worker.judge((gold, answer), (gold, None))
        if correct is not None:
            self._asked[answer, gold] = correct, reason
            if len(self._asked) > _CACHE_SIZE:
                self._asked.pop(next(iter(self._asked)), None)
        return correct, reason


def _timed(decide: Callable[..., _Decision | None], question: tuple[str | None, str]) -> Any:
    """The `Verdict` of a function on (answer, gold), with its time; None if it cannot decide."""
    started = time.perf_counter()
    decision = decide(*question)
    seconds = time.perf_counter() - started
    return decision and Verdict(decision[0], question[0], decision[1], seconds)


def _unwrapped(text: object) -> str:
    """Text without math delimiters or a box; a number as its text, None as empty text."""
    text = "" if text is None else str(text)
    return bare(last_box(text) or text)


@functools.cache
def _shared(process_id: int) -> MathVerifier:
    """The open verifier of one process; its workers end with the process."""
    return MathVerifier(workers=min(4, os.cpu_count() or 1)).__enter__()


def shared_verifier() -> MathVerifier:
    """The open verifier of `verify`, which all threads of this process share."""
    return _shared(os.getpid())


def verify(response: str | None, gold: str | float | None) -> Verdict:
    """Return whether the final answer of `response` equals `gold`.

    The first call starts processes that all later calls share, from any thread. Use `MathVerifier`
    to set the deadline (5 seconds here) or to compare many pairs at once.

    Args:
        response: the whole generated text; None has no answer.
        gold: the gold answer in LaTeX, or a number; `$...$` and `\\boxed{...}` are removed.

    Raises:
        ConfigError: math-verify cannot be loaded.

    Example:
        >>> verify("So it is \\\\boxed{2^{10}}.", "1024").correct
        True
    """
    return shared_verifier().verify(response, gold)
