"""From two texts to a verdict: read both, compare them, say what decided."""

from __future__ import annotations

import re
from collections.abc import Callable

from rlobj.answers.comparison import Exact, Oracle, compare
from rlobj.answers.lexer import Unreadable
from rlobj.answers.reading import read
from rlobj.answers.structures import Items, Named, Scalar, Structure, Tuple, Words
from rlobj.answers.surface import clean, comma_groups
from rlobj.answers.words import fold

__all__ = ["OPEN", "Settler", "canonical"]

OPEN = "not settled"
"""The reason where values are left that the oracle could not tell apart."""

_PROSE = 4
"""Words from which a gold answer is a sentence, which no comparison of ours can settle."""


class Settler:
    """Compares answers with gold answers by an oracle; exact arithmetic unless told otherwise."""

    def __init__(
        self, oracle: Oracle | None = None, reason: Callable[[], str] | None = None
    ) -> None:
        self._oracle = oracle or Exact()
        self._reason = reason or (lambda: "exact")

    def settle(self, answer: str, gold: str) -> tuple[bool | None, str]:
        """Whether an answer is the gold answer, and what decided or why nothing could."""
        try:
            expected = read(gold)
        except (Unreadable, RecursionError):
            if clean(answer).replace(" ", "") == clean(gold).replace(" ", ""):
                return True, "same text"
            if "\\" in gold or not re.search("[A-Za-z]{3}", gold):
                return None, "gold not readable"
            expected = Words(fold(gold))
        try:
            given = read(answer)
            if isinstance(expected, (Items, Tuple)) and comma_groups(clean(answer)):
                given = read(answer, grouped=False)
        except (Unreadable, RecursionError) as error:
            if not isinstance(expected, Words):
                return False, f"not readable: {error}"
            given = Words(fold(answer))
        correct = compare(given, expected, self._oracle)
        if not correct and _is_prose(expected):
            return None, "gold is prose"
        return correct, OPEN if correct is None else self._reason()


def canonical(answer: str) -> str:
    r"""A text that is the same for answers that are trivially the same; nothing is evaluated but
    rational numbers.

    Example:
        >>> canonical(r"\dfrac{1}{2}") == canonical("0.5") == canonical(r"$\frac12$")
        True
        >>> canonical("2, 1") == canonical(r"\{1, 2\}"), canonical("(2, 1)") == canonical("(1, 2)")
        (False, False)
    """
    try:
        return _spelled(read(answer))
    except (Unreadable, RecursionError):
        return clean(answer).replace(" ", "")


def _spelled(structure: Structure) -> str:
    """A structure as text; what has no order is sorted."""
    if isinstance(structure, Scalar):
        value = structure.latex if structure.value is None else str(structure.value)
        unit = sorted(structure.unit) if structure.unit else ""
        return f"{value or structure.tree}{unit}"
    if isinstance(structure, Named):
        return _spelled(structure.value)
    if isinstance(structure, Items):
        inside = ",".join(sorted(map(_spelled, structure.items)))
        return f"{{{inside}}}" if structure.braces else inside
    if isinstance(structure, Tuple):
        return f"({structure.brackets[0].join(map(_spelled, structure.items))})"
    if isinstance(structure, Words):
        return structure.text
    return repr(structure)


def _is_prose(gold: Structure) -> bool:
    if isinstance(gold, Named):
        return _is_prose(gold.value)
    if isinstance(gold, Items):
        return any(map(_is_prose, gold.items))
    return isinstance(gold, Words) and len(gold.text.split()) >= _PROSE
