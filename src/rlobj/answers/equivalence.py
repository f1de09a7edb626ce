"""Compare two answers given as text: equal text and integers first, then their structures.

An answer that is too long or too deeply nested is wrong, unless the gold answer is so as well.
"""

import re

from rlobj.answers import structures
from rlobj.answers.comparison import ExactComparer, compare
from rlobj.answers.lexer import Unreadable, join_comma_groups, normalize
from rlobj.answers.structure_parser import parse_structure
from rlobj.answers.structures import Items, Structure, Tuple, Words
from rlobj.answers.words import normalize_words

MAX_LENGTH = 500
"""Limit on the characters of an answer, or four times the gold answer's if that is more."""
MAX_DEPTH = 12
"""Limit on nested brackets of any kind; math-verify takes seconds at this depth."""

_LONG = re.compile(r"\\(?:i{0,3}int|oint|lim|sum|prod)(?![a-z])|[∫∑∏]")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_SEPARATOR = re.compile(r",\\!|\{,\}|\\,|\\!")  # thousands separators of LaTeX


def decide(answer: str, gold: str) -> tuple[bool, str] | None:
    """Compare `answer` with `gold` as text and as integers.

    Returns:
        `(correct, reason)`, or None if the answers must be parsed.

    Example:
        >>> decide("1,024", "1024")
        (True, 'integers')
        >>> decide("5" + "+0" * 300, "5")
        (False, 'too large: longer than 500 characters')
        >>> decide("2^{10}", "1024") is None
        True
    """
    if answer == gold:
        return True, "same text"
    integer, gold_integer = _integer(answer), _integer(gold)
    if integer is not None and gold_integer is not None:
        return integer == gold_integer, "integers"
    if len(answer) > max(MAX_LENGTH, 4 * len(gold)):
        return False, f"too large: longer than {MAX_LENGTH} characters"
    reason = None if integer is not None else _refusal(answer)
    return None if reason is None or _refusal(gold) else (False, f"too large: {reason}")


def _refusal(text: str) -> str | None:
    """Return why an answer is not parsed, or None if it is."""
    depth = deepest = braces = 0
    escaped = False
    for character in text:
        if character in "{}" and not escaped:
            braces += 1 if character == "{" else -1
            if braces < 0:
                break
        depth += (character in "{[(") - (character in "}])")
        deepest = max(deepest, depth)
        escaped = character == "\\" and not escaped
    if braces:
        return "unbalanced braces"
    return f"brackets deeper than {MAX_DEPTH}" if deepest > MAX_DEPTH else None


def may_take_long(text: str) -> bool:
    """Return whether an answer needs a computer algebra system, which may take very long."""
    return _LONG.search(text) is not None


def _integer(text: str) -> tuple[bool, str] | None:
    """Sign and digits of an integer, as text so that the number of digits has no limit."""
    if not text.isdecimal():
        text = _SEPARATOR.sub(",", text)
    if not _INTEGER.fullmatch(text):
        return None
    digits = text.lstrip("+-").replace(",", "").lstrip("0")
    return text.startswith("-") and digits != "", digits


_QUOTIENT = re.compile(r"d:[d∂](?:\^([0-9]))?(.+)/[d∂](.+?)(?:\^[0-9])?")

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
    if "\\mu" in answer and "mu" in structures.names_in(gold_structure):
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
        structure = structures.as_point(structure)
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
    gold = structures.without_name(gold)
    if isinstance(gold, Items):
        return any(map(_is_prose, gold.items))
    return isinstance(gold, Words) and len(gold.text.split()) >= _MIN_PROSE_WORDS


def in_notation_of(answer: Structure, gold: Structure) -> Structure:
    """Return an answer with its derivatives written as in the gold.

    dy/dt is y' and dot y, but never dy/dx.
    """
    answer_names = structures.names_in(answer, everywhere=True)
    if not any(map(_derivative, answer_names)):
        return answer
    gold_names = structures.names_in(gold, everywhere=True)
    new: dict[str, str] = {}
    for name in answer_names - gold_names:
        if (derivative := _derivative(name)) is None:
            continue
        base, order, variable = derivative
        for other in gold_names - answer_names:
            match _derivative(other):
                case (b, o, v) if (b, o) == (base, order) and None in (v, variable):
                    new[name] = other
    return structures.rename(answer, new) if new else answer


def _derivative(name: str) -> tuple[str, int, str | None] | None:
    """Return the function, the order and the variable (None if it is not written)."""
    if quotient := _QUOTIENT.fullmatch(name):
        return quotient[2], int(quotient[1] or 1), quotient[3]
    bare = name.replace("'", "")
    return (bare, len(name) - len(bare), None) if bare != name else None
