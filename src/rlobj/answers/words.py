"""Parse answers that are words, choices, or numerals with a base."""

from __future__ import annotations

import re
from fractions import Fraction

from rlobj.answers.structures import (
    INFINITY,
    MINUS_INFINITY,
    Based,
    Items,
    Structure,
    Words,
    scalar,
)
from rlobj.answers.vocabulary import CARDINALS, LISTS, TEXTS, word_set

_NUMERAL = re.compile(
    r"([+-]?)[({]?([0-9A-Z]*[0-9][0-9A-Z]*)[)}]?"
    r"(?:_\{?\(?(?:base)?([0-9]{1,2}|[a-z]+)\)?\}?|\(?(?:in)?base([0-9]{1,2}|[a-z]+)\)?)"
)
_COMMANDS = "|".join(sorted(TEXTS | {"mathbf", "mathsf"}))
_TEXT = rf"\\(?:{_COMMANDS})\s*\{{([^{{}}]*)\}}"
_MARKED = re.compile(r"\\(?:text\w*|mbox|mathrm)\s*\{([^{}]*)\}")
_WRAPPER = re.compile(
    r"\\(?:text\w*|math(?:rm|bf|it|sf|tt)|[mh]box|boxed|fbox|operatorname|rm|bf)\b\s*"
)
_SPACING = re.compile(r"\\[,;:! ]|\\q?quad\b|[{}$~*]")
_ARTICLE = re.compile(LISTS["article"], re.IGNORECASE)
_LETTER = re.compile(r"\(? ?(\D) ?\)|\[(\D)\]")
_HAS_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2}")
_INTRODUCTION = re.compile(LISTS["introduction"], re.IGNORECASE)
_LABEL = re.compile(LISTS["label"], re.IGNORECASE)
_SHORT = word_set("yes no odd even true false none all not any")
_SENTENCE = re.compile(r"[A-Za-z][A-Za-z0-9 ,.'()-]*")
_ROMAN = re.compile(r"(?=..)[IVX]+")
_MAX_NUMERAL, _MAX_LETTER = 500, 16

_NOTHING = re.compile(LISTS["nothing"])
_INFINITE = re.compile(
    r"(negative |minus )?(?:positive )?(?:infinity|infinite|infinitely many)(?: \w+)?"
)
_CHOICE = re.compile(
    r"(?:(?:option|choice|answer)\s*)?(?:\(([A-J])\)[.:]?|([A-J])[).:])"
    r"(?:[\s~]|\\[,;:! ]|\\q?quad\b|\\hspace\{[^{}]*\})*(?P<value>.*)",
    re.IGNORECASE | re.DOTALL,
)
_CHOICE_VALUE = re.compile(
    r"[0-9.$]|-[0-9\\]|\\(?!text\w*\{\s*(?:or|and)\b)|(?!or|and|not|is|was)[A-Za-z]{2}"
)
_CHOICE_AGAIN = re.compile(r"(?<![A-Za-z\\])[A-J]\}?[).:]|\([A-J]\)|\b(?:or|and|not|wrong)\b")


def normalize_words(text: str) -> str:
    r"""Remove markup and punctuation, and convert to lower case except a single letter.

    Example:
        >>> normalize_words(r"\text{ Evelyn}."), normalize_words(r"(\textbf{C})")
        ('evelyn', 'C')
    """
    text = _WRAPPER.sub("", text)
    text = " ".join(_SPACING.sub(" ", text).split()).strip(' .,;:!"`')
    text = _ARTICLE.sub("", text)
    text = text.removesuffix(" function")
    if before := _INTRODUCTION.match(text) or _LABEL.match(text):
        text = text[before.end() :]
    if choice := _LETTER.fullmatch(text):
        text = choice[1] or choice[2]
    return text if len(text) == 1 else text.casefold()


def parse_based_numeral(text: str) -> Structure | None:
    """Parse a numeral with its base, 52_8 or "52 base 8"; base ten gives a plain number."""
    if ("_" not in text and "base" not in text) or len(text) > _MAX_NUMERAL:
        return None
    numeral = _NUMERAL.fullmatch(re.sub(r"\\[,;! ]|\s|\$", "", re.sub(_TEXT, r"\1", text)))
    if numeral is None:
        return None
    sign, digits, subscript, spelled = numeral.groups()
    name = subscript or spelled
    base = int(name) if name.isdecimal() else CARDINALS.get(name, 0)
    if not 2 <= base <= 36 or any(int(digit, 36) >= base for digit in digits):
        return None
    digits = sign.strip("+") + (digits.lstrip("0") or "0")
    return scalar(Fraction(digits)) if base == 10 else Based(digits, base)


def parse_special(text: str) -> Structure | None:
    """Parse a numeral with a base, and words for nothing or infinity."""
    if numeral := parse_based_numeral(text):
        return numeral
    if not _HAS_WORDS.search(text):
        return None
    folded = normalize_words(text)
    if _NOTHING.fullmatch(folded):
        return Items((), braces=True)
    if infinite := _INFINITE.fullmatch(folded):
        return scalar(MINUS_INFINITY if infinite[1] else INFINITY)
    return None


def parse_choice(text: str) -> tuple[str, str] | None:
    r"""Split a choice with its value, `\textbf{(C)}\ 12`, into the letter and the value."""
    text = re.sub(rf"^(\(?){_TEXT}", r"\1\2", text, count=1)
    choice = _CHOICE.fullmatch(text)
    letter, value = (choice[1] or choice[2], choice["value"]) if choice else ("", "")
    if letter.isupper() and _CHOICE_VALUE.match(value) and not _CHOICE_AGAIN.search(value):
        return letter, value
    return None


def parse_words(text: str) -> Words | None:
    """Parse words; otherwise a word would be a product of letters and equal its anagrams."""
    if len(text) > _MAX_LETTER and not _HAS_WORDS.search(text):
        return None
    folded = normalize_words(text)
    marked = _MARKED.fullmatch(text)
    if len(folded) == 1 and folded.isalpha() and (folded.isupper() or marked):
        return Words(folded)
    if re.search(r"\bor\b|\band\b", folded):
        return None
    if marked and _SENTENCE.fullmatch(marked[1].strip()) and re.search("[A-Za-z]{3}", folded):
        return Words(folded)
    if not re.fullmatch(r"[a-z]+(?:[ '-][a-z]+)*", folded):
        return None
    plain = _MARKED.sub(r"\1", text).strip()
    if _ROMAN.fullmatch(plain):
        return Words(folded)
    if "\\" in plain or (plain.isupper() and len(plain) < 6):
        return None
    usual = folded in _SHORT or (" " in folded and re.search("[a-z]{3}", folded))
    return Words(folded) if marked or usual or re.fullmatch("[A-Za-z]{4,}", plain) else None
