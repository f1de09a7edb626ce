"""Compare two answers given as text."""

from __future__ import annotations

import re

from rlobj.answers.comparison import ExactComparer, ValueComparer, compare
from rlobj.answers.lexer import Unreadable
from rlobj.answers.normalization import join_comma_groups, normalize
from rlobj.answers.structure_parser import parse_structure
from rlobj.answers.structures import Items, Named, Scalar, Structure, Tuple, Words
from rlobj.answers.words import normalize_words

__all__ = ["NOT_SETTLED", "canonical", "check_equivalence"]

NOT_SETTLED = "not settled"
"""The reason if the comparer could not decide some values."""

_MIN_PROSE_WORDS = 4
"""A gold answer with this many words is a sentence and cannot be compared."""


def check_equivalence(
    answer: str, gold: str, comparer: ValueComparer | None = None
) -> tuple[bool | None, str]:
    """Return whether an answer equals the gold answer (None = undecided), and the reason.

    Args:
        answer: LaTeX, plain mathematics or words.
        gold: the gold answer, in the same form.
        comparer: compares values; default: exact arithmetic only.
    """
    comparer = comparer or ExactComparer()
    try:
        expected = parse_structure(gold)
    except (Unreadable, RecursionError):
        if normalize(answer).replace(" ", "") == normalize(gold).replace(" ", ""):
            return True, "same text"
        if "\\" in gold or not re.search("[A-Za-z]{3}", gold):
            return None, "gold not readable"
        expected = Words(normalize_words(gold))
    try:
        given = parse_structure(answer)
        if isinstance(expected, (Items, Tuple)) and join_comma_groups(normalize(answer)):
            given = parse_structure(answer, grouped=False)
    except (Unreadable, RecursionError) as error:
        if not isinstance(expected, Words):
            return False, f"not readable: {error}"
        given = Words(normalize_words(answer))
    correct = compare(given, expected, comparer)
    if not correct and _is_prose(expected):
        return None, "gold is prose"
    return correct, NOT_SETTLED if correct is None else comparer.reason


def canonical(answer: str) -> str:
    r"""Return the same text for trivially equal answers; only rational numbers are evaluated.

    Args:
        answer: LaTeX, plain mathematics or words.

    Example:
        >>> canonical(r"\dfrac{1}{2}") == canonical("0.5") == canonical(r"$\frac12$")
        True
        >>> canonical("2, 1") == canonical(r"\{1, 2\}"), canonical("(2, 1)") == canonical("(1, 2)")
        (False, False)
    """
    try:
        return _canonical_text(parse_structure(answer))
    except (Unreadable, RecursionError):
        return normalize(answer).replace(" ", "")


def _canonical_text(structure: Structure) -> str:
    """Text of a structure; unordered elements are sorted."""
    if isinstance(structure, Scalar):
        value = structure.latex if structure.value is None else str(structure.value)
        unit = sorted(structure.unit) if structure.unit else ""
        return f"{value or structure.tree}{unit}"
    if isinstance(structure, Named):
        return _canonical_text(structure.value)
    if isinstance(structure, Items):
        inside = ",".join(sorted(map(_canonical_text, structure.items)))
        return f"{{{inside}}}" if structure.braces else inside
    if isinstance(structure, Tuple):
        return f"({structure.brackets[0].join(map(_canonical_text, structure.items))})"
    if isinstance(structure, Words):
        return structure.text
    return repr(structure)


def _is_prose(gold: Structure) -> bool:
    if isinstance(gold, Named):
        return _is_prose(gold.value)
    if isinstance(gold, Items):
        return any(map(_is_prose, gold.items))
    return isinstance(gold, Words) and len(gold.text.split()) >= _MIN_PROSE_WORDS
