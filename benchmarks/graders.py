"""The graders that `benchmarks.verifier` compares with, in processes that can be killed."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from rlobj.workers.worker import Worker

SECONDS = 60.0
"""Processor time for one response; longer than the limits that the graders have themselves."""
WORKERS = 2

Decide = Callable[[str, str], tuple[bool | None, str]]


def math_verify() -> Decide:
    """math-verify as the reward `math_verify` calls it."""
    from rlobj.rewards.math_verify_worker import Comparer  # takes seconds

    comparer = Comparer()

    def decide(response: str, gold: str) -> tuple[bool, str]:
        verdict, reason = comparer.answer(gold, response)
        return bool(verdict and verdict[0]), reason

    return decide


class Here(Executor):
    """Runs each call at once, in this thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call the function, and return what it returned or raised."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def verl() -> Decide:
    """verl's scorer `math_verify`; its own pool would leave processes behind if this is killed."""
    from verl.utils.reward_score import math_verify as scorer

    scorer._pool = Here()
    return lambda response, gold: (scorer.compute_score(response, gold) == 1.0, "")


def trl() -> Decide:
    """TRL's `accuracy_reward`; it skips an example whose gold it cannot parse."""
    from trl.rewards.accuracy_rewards import accuracy_reward

    def decide(response: str, gold: str) -> tuple[bool | None, str]:
        [reward] = accuracy_reward([[{"role": "assistant", "content": response}]], [gold])
        return (None, "skipped") if reward is None else (reward == 1.0, "")

    return decide


KNOWN: dict[str, Callable[[], Decide]] = {"math-verify": math_verify, "verl": verl, "trl": trl}
"""Name of a grader, which is that of its package -> what opens it."""


class Grader:
    """The grader with a name: `answer(response, gold)` returns its verdict and the reason.

    None = it skips the example.
    """

    def __init__(self, name: str) -> None:
        self.answer = KNOWN[name]()


def verdicts(name: str, pairs: Sequence[tuple[str, str]]) -> list[bool | None]:
    """The verdicts of a grader on responses and golds; None = undecided, or over the time limit."""

    def some(start: int) -> list[bool | None]:
        process = Worker(f"{__name__}:Grader", {"name": name}, processor_seconds=SECONDS)
        try:
            return [process.reply(*pair)[0] for pair in pairs[start::WORKERS]]
        finally:
            process.kill()

    found: list[bool | None] = [None] * len(pairs)
    with ThreadPoolExecutor(WORKERS) as threads:
        for start, part in enumerate(threads.map(some, range(WORKERS))):
            found[start::WORKERS] = part
    return found
