"""Units of measurement: optional in answers, compared by name, and never converted.

A unit is text after a value (`5\\text{ cm}`), a plain word of two or more letters after a number
(`5 cm`), a currency sign or a degree sign. A single letter in mathematics is a variable, never a
unit.
"""

from __future__ import annotations

import re
from collections import Counter

from rlobj.answers.lexer import Token, Tokens
from rlobj.answers.vocabulary import LISTS, table

Unit = frozenset[tuple[str, int]]
"""Unit -> exponent, as pairs: m/s^2 is {(m, 1), (s, -2)}."""
_NAMES = {alias: aliases[0] for aliases in table(LISTS["units"]) for alias in aliases}
_PREFIXED = {
    prefix + unit: prefix + unit for prefix in ("", *"fpnμmcdkMGT") for unit in LISTS["si"].split()
}
_PLAIN_EXCLUDED = _PREFIXED.keys() - _NAMES.keys() | {"mg", "ms", "au", "ly", "pc"}
"""Units that are more likely products of two letters in plain mathematics."""
PERCENT: Unit = frozenset({("%", 1)})
_CURRENCIES = {"$": "$", "€": "euro", "£": "pound"}
_JOINTS = frozenset(["/", "^", "{", "}", "*", "$", "€", "£", "-", "∈", "."])
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_SPEED = re.compile(r"m/s(?:\^\{?2\}?)?")
_PIECE = re.compile(
    r"[A-Za-z°ÅμΩ_]+|\^ ?\{? ?-? ?[0-9]+ ?\}?|(?<! )[0-9]|[/*. $-]|\\(?:[A-Za-z]+|[,;:! ])"
)


def read_unit(text: str) -> Unit | None:
    r"""Return the unit named by a text, or None if it is not a unit.

    Example:
        >>> sorted(read_unit("square centimeters")), sorted(read_unit("m/s^2"))
        ([('cm', 2)], [('m', 1), ('s', -2)])
        >>> read_unit("or maybe") is None
        True
    """
    exponents: Counter[str] = Counter()
    last, sign, power, position = "", 1, 1, 0
    for piece in _PIECE.finditer(text):
        if piece.start() != position:
            return None
        position, word = piece.end(), piece[0]
        lowered = word.lower()
        if word in "$*.- " or word.startswith("\\"):
            continue
        if word == "/" or lowered == "per":
            sign = -1
        elif lowered in _POWERS and position < len(text.rstrip(" .")):
            power = _POWERS[lowered]
        elif (digits := word.strip("^{} ").replace(" ", "")).lstrip("-").isdecimal():
            if not last or abs(exponents[last]) != 1:
                return None
            exponents[last] *= int(digits)
        else:
            name = _NAMES.get(word) or _PREFIXED.get(word)
            name = name or (_NAMES.get(lowered) if len(word) > 1 else None)
            if name is None:
                return None
            exponents[name] += sign * power
            last, power = name, 1
    return frozenset(exponents.items()) if position == len(text) and exponents else None


def is_unit(word: str) -> bool:
    """Return whether a word of two or more letters is the name of a unit."""
    named = word in _NAMES or word.lower() in _NAMES
    return len(word) > 1 and named and word not in _PLAIN_EXCLUDED


def split_unit(tokens: Tokens) -> tuple[Tokens, Unit | None]:
    """Separate a value from the unit after it or the currency sign before it."""
    signed = len(tokens) > 1 and tokens[0].text == "-"
    if len(tokens) > 1 and (currency := _CURRENCIES.get(tokens[signed].text)):
        value = [*tokens[:signed], *tokens[signed + 1 :]]
        return split_unit(value)[0], frozenset({(currency, 1)})
    start = len(tokens)
    while start > 1 and _is_unit_part(tokens[start - 1]):
        start -= 1
    for first in range(start, len(tokens)):
        unit = _unit_of(tokens[first:], tokens[first - 1]) if first else None
        if unit is not None:
            return tokens[:first], unit
    return tokens, None


def _is_unit_part(token: Token) -> bool:
    if token.kind in ("text", "word", "number"):
        return True
    return (token.kind == "name" and token.text in "msh") or token.text in _JOINTS


def _unit_of(tokens: Tokens, before: Token) -> Unit | None:
    """The unit that all of these tokens form after a value; plain words need a number first."""
    first = tokens[0]
    if first.kind == "symbol":
        currency = _CURRENCIES.get(first.text)
        return frozenset({(currency, 1)}) if currency and len(tokens) == 1 else None
    if first.kind == "text":
        return read_unit(" ".join(token.text for token in tokens).strip())
    joined = "".join(token.text for token in tokens)
    after_value = before.kind == "number" or before.text in ("}", ")", "pi", "°")
    speed = first.kind == "name" and first.spaced and after_value
    if speed and _SPEED.fullmatch(joined):
        return read_unit(joined)
    if first.kind != "word" or not all(len(t.text) > 1 or t.kind != "word" for t in tokens):
        return None
    if not after_value or any(t.text in _PLAIN_EXCLUDED for t in tokens):
        return None
    return read_unit(" ".join(token.text for token in tokens))
