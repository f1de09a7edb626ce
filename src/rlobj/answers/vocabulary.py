"""Tables: the meaning of LaTeX commands and words; `vocabulary.toml` has the long ones."""

import re
import tomllib
from fractions import Fraction
from pathlib import Path

LISTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
"""Name -> words, as text."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


def table(text: str) -> list[list[str]]:
    """Return the words of each row; there is a semicolon between rows."""
    return [row.split() for row in text.split(";")]


BRACKETS = dict(table(r"( ); [ ]; { }; \{ \}; ⟨ ⟩; ⌊ ⌋; ⌈ ⌉"))
"""Opening bracket -> closing bracket."""
FUNCTIONS = word_set(LISTS["functions"])
UNSUPPORTED = word_set("int iint iiint oint lim")
"""Commands that need a computer algebra system."""
CONSTANTS = {"pi": "pi", "infty": "∞", "infinity": "∞", "inf": "∞", "e": "e", "i": "i"}
GREEK = word_set(LISTS["greek"])
ACCENTS = word_set(LISTS["accents"])
SYMBOLS = {command: symbol for symbol, *commands in table(LISTS["symbols"]) for command in commands}
"""Command, or character after a backslash -> symbol."""
IGNORED = word_set(LISTS["ignored"])
"""Commands without meaning."""
SKIPPED_ARGUMENT = word_set(LISTS["skipped_argument"])
FONTS = word_set(LISTS["fonts"])
TEXTS = word_set(LISTS["texts"])
FRACTIONS = {name: name[1:] for name in ("dfrac", "tfrac", "cfrac", "sfrac", "dbinom", "tbinom")}
FRACTIONS |= {"nicefrac": "frac", "xfrac": "frac"}
ASCII = {"**": "^", "==": "=", ":=": "=", "=<": "<=", "=>": ">="}
WORDS = {"or": "or", "and": "and", "union": "∪", "percent": "%", "degrees": "°", "degree": "°"}
"""Word -> symbol."""
TEXT_WORDS = {**WORDS, "to": ":", **dict.fromkeys(("is", "equals", "is equal to"), "=")}
"""The whole of a text command -> symbol."""
LATEX = dict(table(LISTS["latex"]))
"""Symbol -> LaTeX."""


_SMALL, _TENS, _FIRST = table(LISTS["numerals"])
CARDINALS = {word: n for n, word in enumerate(_SMALL)} | {
    word: 10 * n for n, word in enumerate(_TENS, 2)
}
"""Number word below one hundred -> value."""
MULTIPLES = {"hundred": 100, "thousand": 1000, "dozen": 12, "score": 20, "gross": 144}
MULTIPLES |= {"lakh": 10**5, "crore": 10**7, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {"half": 2, "halve": 2, "quarter": 4, "hundredth": 100, "thousandth": 1000}
_PARTS |= {word: n for n, word in enumerate(_FIRST, 3)} | {
    re.sub("ve$", "f", re.sub("y$", "ie", word)) + "th": n for word, n in CARDINALS.items() if n > 9
}
SCALES: dict[str, Fraction | int] = {**MULTIPLES} | {
    f"{word}s": Fraction(1, below) for word, below in _PARTS.items()
}
"""Word after a number -> factor: million, dozen, thirds."""
NUMBER_WORDS = frozenset((*CARDINALS, *_PARTS, *SCALES))
"""Words that change the number before them."""
