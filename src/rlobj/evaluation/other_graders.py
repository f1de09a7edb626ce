"""A grader of another project, in a process that can be killed. It is started by its path:

other_graders.py DESCRIPTOR DEADLINE MEMORY NAME     the messages are those of `answers.worker`

in   [response, gold]                the whole response
out  [true | false | null, reason]   null = the grader skips the example
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

PACKAGES = {"math-verify": "math_verify", "verl": "verl", "trl": "trl"}
"""Name of a grader, which is that of its package -> the module that it needs."""

Grade = Callable[[str, str], bool | None]


def math_verify() -> Grade:
    """math-verify as its authors advise for rewards: the gold in a box and as first argument."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig(boxed_match_priority=0)

    def grade(response: str, gold: str) -> bool:
        answer = parse(response, [latex, ExprExtractionConfig()])
        return bool(verify(parse(f"\\boxed{{{gold}}}", [latex]), answer))

    return grade


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


def verl() -> Grade:
    """verl's scorer `math_verify`; its own pool would leave processes behind if this is killed."""
    from verl.utils.reward_score import math_verify as scorer

    scorer._pool = Here()
    return lambda response, gold: scorer.compute_score(response, gold) == 1.0


def trl() -> Grade:
    """TRL's `accuracy_reward`; it skips an example whose gold it cannot parse."""
    from trl.rewards.accuracy_rewards import accuracy_reward

    def grade(response: str, gold: str) -> bool | None:
        [reward] = accuracy_reward([[{"role": "assistant", "content": response}]], [gold])
        return None if reward is None else reward == 1.0

    return grade


class Other:
    """The grader with a name, for `answers.worker.main`."""

    def __init__(self, name: str) -> None:
        self._grade = {"math-verify": math_verify, "verl": verl, "trl": trl}[name]()

    def decide(self, response: str, gold: str) -> tuple[bool | None, str]:
        """Return the grader's verdict; without one, the reason."""
        correct = self._grade(response, gold)
        return correct, "skipped" if correct is None else ""


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # the folder of rlobj
    from rlobj.answers.worker import main

    main(lambda memory: Other(sys.argv[4]))
