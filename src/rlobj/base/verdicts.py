"""Verdicts on one response by several gold answers: one right answer is enough."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

WORDS = {True: "right", False: "wrong", None: "undecided"}
Found = TypeVar("Found")


def best(
    found: Iterable[Found], correct: Callable[[Found], bool | None] = attrgetter("correct")
) -> Found:
    """The verdict that counts: a right one, else an undecided one, else a wrong one.

    Args:
        found: at least one verdict.
        correct: verdict -> True, None = undecided, or False.
    """
    return min(found, key=lambda each: (True, None, False).index(correct(each)))


def best_of_golds(
    verify_many: Callable[[list[tuple[Any, Any]]], list[Found]],
    asked: Sequence[tuple[Any, Sequence[Any]]],
) -> list[Found]:
    """The verdict on each (response, gold answers) by the gold answer that is best for it."""
    pairs = [(response, gold) for response, golds in asked for gold in golds]
    verdicts = iter(verify_many(pairs))
    return [best(next(verdicts) for _ in golds) for _, golds in asked]
