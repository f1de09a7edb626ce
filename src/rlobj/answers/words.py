"""Parse answers that are words, choices, or numerals with a base."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from rlobj.answers.lexer import Token
from rlobj.answers.structures import Based, Structure, Words, scalar
from rlobj.answers.vocabulary import word_set

_BASES = {
    **{"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9},
    **{"ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16},
}
_NUMERAL = re.compile(
    r"([+-]?)\(?([0-9A-Z]*[0-9][0-9A-Z]*)\)?"
    r"(?:_\{?\(?(?:base)?([0-9]{1,2}|[a-z]+)\)?\}?|\(?(?:in)?base([0-9]{1,2}|[a-z]+)\)?)"
)
_TEXT = re.compile(r"\\(?:text|mathrm|textrm|mbox|rm|textbf|mathbf)\s*\{([^{}]*)\}")
_WRAPPER = re.compile(r"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|mbox|boxed|fbox|operatorname)\b\s*")
_SHORT = word_set("yes no odd even true false none one two six ten all not any")
_SENTENCE = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'()-]*")
_MAX_NUMERAL = 500


def normalize_words(text: str) -> str:
    r"""Remove markup and punctuation, and convert to lower case except a single letter.

    Example:
        >>> normalize_words(r"\text{ Evelyn}."), normalize_words(r"(\textbf{C})")
        ('evelyn', 'C')
    """
    text = _WRAPPER.sub("", text)
    text = re.sub(r"\\[,;:! ]|\\q?quad\b|[{}$~*]", " ", text)
    text = re.sub(r"\s+", " ", text).strip(' .,;:!"`')
    text = re.sub(r"^(?:the|an?|option|choice) (?=[(\w])", "", text, flags=re.IGNORECASE)
    if choice := re.fullmatch(r"\(? ?(.) ?\)", text):
        text = choice[1]
    return text if len(text) == 1 else text.casefold()


def parse_based_numeral(text: str) -> Structure | None:
    """Parse a numeral with its base, 52_8 or "52 base 8"; base ten gives a plain number."""
    if ("_" not in text and "base" not in text) or len(text) > _MAX_NUMERAL:
        return None
    found = _NUMERAL.fullmatch(re.sub(r"\\[,;! ]|\s|\$", "", _TEXT.sub(r"\1", text)))
    if found is None:
        return None
    sign, digits, subscript, spelled = found.groups()
    name = subscript or spelled
    base = int(name) if name.isdecimal() else _BASES.get(name, 0)
    if not 2 <= base <= 36 or any(int(each, 36) >= base for each in digits):
        return None
    digits = sign.strip("+") + (digits.lstrip("0") or "0")
    return scalar(Fraction(digits)) if base == 10 else Based(digits, base)


def parse_words(text: str) -> Words | None:
    """Parse words; otherwise a word would be a product of letters and equal its anagrams."""
    folded = normalize_words(text)
    marked = re.fullmatch(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}", text)
    if len(folded) == 1 and folded.isalpha() and (folded.isupper() or marked):
        return Words(folded)
    if marked and _SENTENCE.fullmatch(marked[1].strip()) and re.search("[A-Za-z]{3}", folded):
        return None if re.search(r"\bor\b|\band\b", folded) else Words(folded)
    if not re.fullmatch(r"[a-z]+(?:[ '-][a-z]+)*", folded) or re.search(r"\bor\b|\band\b", folded):
        return None
    plain = re.sub(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}", r"\1", text).strip()
    if "\\" in plain or (plain.isupper() and len(plain) < 6):
        return None
    known = folded in _SHORT or (" " in folded and re.search("[a-z]{3}", folded))
    return Words(folded) if marked or known or re.fullmatch("[A-Za-z]{4,}", plain) else None


def is_prose(tokens: Sequence[Token]) -> bool:
    """Return whether there are words among the tokens of a value."""
    for token in tokens:
        if token.kind == "text":
            return True
        if token.kind == "word" and (
            token.text.lower() in _SHORT or (len(token.text) >= 4 and not token.text.isupper())
        ):
            return True
    return False
