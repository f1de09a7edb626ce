r"""Knights and Knaves: every person named once, each as what they are.

The answer is what the last closed `<answer>` tag holds, after `</think>` where there is one:

    <answer>
    (1) Zoey is a knight
    (2) Oliver is a knave
    </answer>

It may hold statements of this form and nothing else, one a line, or with commas, semicolons, full
stops or "and" between; numbers in front, bold marks and case do not matter. "Zoey is a knight or a
knave", a person left out, and a person called both are wrong. As in Logic-RL (arXiv:2502.14768) and
AR-Lopti (arXiv:2505.12929), but for the reward, which is 1 or 0 here, and the format, which earns
nothing of its own.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

from rlobj.rewards.kinds import Graded, Reward

if TYPE_CHECKING:
    from rlobj.data import Problem

__all__ = ["KnightsAndKnaves", "grade_roles", "roles"]

_SEPARATOR = re.compile(r"<br\s*/?>|[\n,;.]|\band\b", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(?:[-•]|\(?\d+ ?[):]?)? ?(?:([^\W\d][\w'-]*) is (?:a )?(knight|knave))?", re.IGNORECASE
)
"""A statement, or nothing, after a number or a bullet; with single blanks."""


class KnightsAndKnaves(Reward):
    """1 if `<answer>` correctly says who is a knight and who is a knave, else 0."""

    def open(self) -> _RolesGrader:
        """A grader that reads statements."""
        return _RolesGrader()


class _RolesGrader:
    def __init__(self) -> None:
        self.undecided: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def score(self, responses: Sequence[str], problems: Sequence[Problem]) -> list[Graded]:
        grades = [
            grade_roles(response, problem.answer)
            for response, problem in zip(responses, problems, strict=True)
        ]
        self.undecided.update(grade.reason for grade in grades if grade.correct is None)
        return grades


def grade_roles(response: str, gold: str) -> Graded:
    """The grade of a response by the rule of this module.

    Args:
        response: the model's text.
        gold: the statements that are right, in the same form.

    Example:
        >>> gold = "(1) Zoey is a knight\\n(2) Oliver is a knave"
        >>> grade_roles("<answer>Oliver is a knave, Zoey is a knight</answer>", gold).correct
        True
        >>> grade_roles("<answer>(1) Zoey is a knight</answer>", gold).reason
        'not everybody is named'
    """
    answer = _answer(response)
    expected = roles(gold)
    if not expected:
        return Graded(math.nan, None, "gold not parsed", answer)
    if answer is None:
        return Graded(0.0, False, "no answer", None)
    given = roles(answer)
    if given is None:
        reason = "not a list of statements"
    elif given == expected:
        reason = "same roles"
    elif given.keys() == expected.keys():
        reason = "other roles"
    else:
        reason = "not everybody is named" if given.keys() < expected.keys() else "other people"
    correct = given == expected
    return Graded(float(correct), correct, reason, answer)


def roles(text: str) -> dict[str, str] | None:
    """Who is what, in lower case; None if the text is anything but statements without conflict.

    Example:
        >>> roles("(1) Zoey is a knight\\n(2) Oliver is a knave")
        {'zoey': 'knight', 'oliver': 'knave'}
        >>> roles("Zoey is a knight or a knave") is None
        True
    """
    found: dict[str, str] = {}
    for piece in _SEPARATOR.split(re.sub(r"[*`]", "", text)):
        statement = _STATEMENT.fullmatch(" ".join(piece.split()))
        if statement is None:
            return None
        if statement[1]:
            name, role = statement[1].lower(), statement[2].lower()
            if found.setdefault(name, role) != role:
                return None
    return found


def _answer(response: str) -> str | None:
    """What the last closed answer tag holds; None without one, or within an unfinished thought."""
    final = response.rpartition("</think>")[2]
    if "<think>" in final:
        return None
    inside, closed, _ = final.rpartition("</answer>")
    _, opened, answer = inside.rpartition("<answer>")
    return answer.strip() or None if opened and closed else None
