"""Compare two answers given as text."""

from __future__ import annotations

import re

from rlobj.answers.comparison import compare
from rlobj.answers.derivatives import in_notation_of
from rlobj.answers.exact import ExactComparer
from rlobj.answers.lexer import Unreadable
from rlobj.answers.normalization import join_comma_groups, normalize
from rlobj.answers.structure_parser import parse_structure
from rlobj.answers.structures import (
    Items,
    Structure,
    Tuple,
    Words,
    as_point,
    names_in,
    without_name,
)
from rlobj.answers.words import normalize_words

NOT_SETTLED = "not settled"
"""The reason if the comparer could not decide some values."""
_LIST_OR_NUMBER = re.compile(r"[0-9]{3}(?:,\s*[0-9]{3}){2,}")
"""A gold answer such as 353,357,360, which may be a list or a number; the answer decides."""
_DERIVATIVE = re.compile(r"['′’]|prime|dot|\{\s*(?:d|\\partial)|d\S*/d")
"""Marks without which an answer has no derivative."""
_MIN_PROSE_WORDS = 4
"""A gold answer with this many words is a sentence and cannot be compared."""


def check_equivalence(
    answer: str, gold: str, comparer: ExactComparer | None = None
) -> tuple[bool | None, str]:
    """Return whether an answer equals the gold answer, and the reason.

    None is the reply if the gold answer is at fault, or if the comparer cannot decide some values.

    Args:
        answer: LaTeX, plain mathematics or words.
        gold: the gold answer, in the same form.
        comparer: compares values; default: exact arithmetic only.
    """
    comparer = comparer or ExactComparer()
    try:
        gold_structure = parse_structure(gold)
    except (Unreadable, RecursionError):
        if normalize(answer).replace(" ", "") == normalize(gold).replace(" ", ""):
            return True, "same text"
        if "\\" in gold or not re.search("[A-Za-z]{3}", gold):
            return None, "gold not readable"
        gold_structure = Words(normalize_words(gold))
    if "\\mu" in answer and "mu" in names_in(gold_structure):
        answer = answer.replace("\\mu", "\\mu{}")  # a factor, not micro
    try:
        structure = parse_structure(answer)
        if isinstance(gold_structure, (Items, Tuple)) and join_comma_groups(normalize(answer)):
            structure = parse_structure(answer, grouped=False)
    except (Unreadable, RecursionError) as error:
        if not isinstance(gold_structure, Words):
            return False, f"not readable: {error}"
        structure = Words(normalize_words(answer))
    if isinstance(gold_structure, Tuple):
        structure = as_point(structure)
    if isinstance(structure, Items) and _LIST_OR_NUMBER.fullmatch(gold):
        gold_structure = parse_structure(gold, grouped=False)
    if _DERIVATIVE.search(answer):
        structure = in_notation_of(structure, gold_structure)
    correct = compare(structure, gold_structure, comparer)
    if not correct and _is_prose(gold_structure):
        return None, "gold is prose"
    if correct is False and _is_words(structure) and not _is_words(gold_structure):
        return False, "not an answer"
    return correct, NOT_SETTLED if correct is None else comparer.reason


def _is_words(structure: Structure) -> bool:
    return isinstance(structure, Words) and len(structure.text) > 1


def _is_prose(gold: Structure) -> bool:
    gold = without_name(gold)
    if isinstance(gold, Items):
        return any(map(_is_prose, gold.items))
    return isinstance(gold, Words) and len(gold.text.split()) >= _MIN_PROSE_WORDS
