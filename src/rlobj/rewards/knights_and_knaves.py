r"""The reward for Knights and Knaves puzzles: 1 if every person's role is right, else 0.

The answer is the content of the last closed `<answer>` tag after the last `</think>`, if any:

    <answer>
    (1) Zoey is a knight
    (2) Oliver is a knave
    </answer>

It must contain statements of this form only, separated by lines, commas, semicolons, full stops
or "and". Numbers in front, bold marks and case do not matter. "Zoey is a knight or a knave", a
missing person, and a person with both roles are wrong. This follows Logic-RL (arXiv:2502.14768) and
AR-Lopti (arXiv:2505.12929), except that the reward is 1 or 0 and the format earns no reward.
"""

from __future__ import annotations

import math
import re

from rlobj.rewards.kinds import FunctionGrader, Graded, Reward

_SEPARATOR = re.compile(r"<br\s*/?>|[\n,;.]|\band\b", re.IGNORECASE)
_STATEMENT = re.compile(
    r"(?:[-•]|\(?\d+ ?[):]?)? ?(?:([^\W\d][\w'-]*) is (?:a )?(knight|knave))?", re.IGNORECASE
)
"""An optional statement after an optional number or bullet, with single blanks."""


class KnightsAndKnaves(Reward):
    """1 if `<answer>` correctly says who is a knight and who is a knave, else 0."""

    def open(self) -> FunctionGrader:
        """Return a grader that compares roles."""
        return FunctionGrader(lambda response, problem: grade_roles(response, problem.answer))


def grade_roles(response: str, gold: str) -> Graded:
    """Grade a response by the rule of this module.

    Args:
        response: the whole generated text.
        gold: the right statements, in the same form.

    Example:
        >>> gold = "(1) Zoey is a knight\\n(2) Oliver is a knave"
        >>> grade_roles("<answer>Oliver is a knave, Zoey is a knight</answer>", gold).correct
        True
        >>> grade_roles("<answer>(1) Zoey is a knight</answer>", gold).reason
        'not everybody is named'
    """
    answer = _answer(response)
    expected = parse_roles(gold)
    if not expected:
        return Graded(math.nan, None, "gold not parsed", answer)
    if answer is None:
        return Graded(0.0, False, "no answer", None)
    given = parse_roles(answer)
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


def parse_roles(text: str) -> dict[str, str] | None:
    """Return name -> role, in lower case; None if there is other text or a contradiction.

    Example:
        >>> parse_roles("(1) Zoey is a knight\\n(2) Oliver is a knave")
        {'zoey': 'knight', 'oliver': 'knave'}
        >>> parse_roles("Zoey is a knight or a knave") is None
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
    """Content of the last closed answer tag; None if there is none or thinking is not closed."""
    final = response.rpartition("</think>")[2]
    if "<think>" in final:
        return None
    inside, closed, _ = final.rpartition("</answer>")
    _, opened, answer = inside.rpartition("<answer>")
    return answer.strip() or None if opened and closed else None
