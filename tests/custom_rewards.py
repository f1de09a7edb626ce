"""Functions of users as rewards, and the grades that they give."""

from __future__ import annotations

from typing import Any

from rlobj.data import Problem
from rlobj.rewards import Custom, Graded, Grader, function_grader


def problems(*answers: str, **extra: Any) -> list[Problem]:
    return [Problem(f"p{i}", "?", each, dict(extra)) for i, each in enumerate(answers)]


def opened(function: Any, **settings: Any) -> Grader:
    return function_grader(function, "mine", Custom(target="mine", **settings))


def graded(function: Any, responses: list[str], **settings: Any) -> list[Graded]:
    with opened(function, **settings) as grader:
        return grader.score(responses, problems(*"x" * len(responses)))


def reasons(grades: list[Graded]) -> list[str]:
    return [each.reason for each in grades]
