"""Tables: the meaning of LaTeX commands and words; `vocabulary.toml` has the long ones."""

from __future__ import annotations

import tomllib
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
