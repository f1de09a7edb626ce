"""Words around a value: units, nouns, and what makes it another value.

Units of measurement are optional in answers, compared by name, and never converted. A unit is text
after a value (`5\\text{ cm}`), a plain word of two or more letters after a number (`5 cm`), a
currency sign or a degree sign. A single letter in mathematics is a variable, never a unit.

Nouns are dropped: "33 ordered pairs" and "there are exactly 33" are 33. "At least 33", "33
factorial" and "33 less than n" are not 33. A unit or a multiplier (million, dozen) after the value
is kept.
"""

from __future__ import annotations

import re
from collections import Counter

from rlobj.answers.lexer import Token, closing_bracket, nesting
from rlobj.answers.vocabulary import FUNCTIONS, LISTS, NUMBER_WORDS, SCALES, table, word_set

Tokens = list[Token]
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
_POWERS = {"square": 2, "squared": 2, "sq": 2, "cubic": 3, "cubed": 3, "cu": 3}
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
    found: Counter[str] = Counter()
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
        elif lowered in ("squared", "cubed"):
            if not last:
                return None
            found[last] *= _POWERS[lowered]
        elif lowered in ("square", "sq", "cubic", "cu") and position < len(text.rstrip(" .")):
            power = _POWERS[lowered]
        elif (digits := word.strip("^{} ").replace(" ", "")).lstrip("-").isdecimal():
            if not last or abs(found[last]) != 1:
                return None
            found[last] *= int(digits)
        else:
            name = _NAMES.get(word) or _PREFIXED.get(word)
            name = name or (_NAMES.get(lowered) if len(word) > 1 else None)
            if name is None:
                return None
            found[name] += sign * power
            last, power = name, 1
    return frozenset(found.items()) if position == len(text) and found else None


def is_currency(text: str) -> bool:
    """Return whether a text is the name of a currency, which may stand before the number."""
    unit = read_unit(text)
    return unit is not None and unit <= {(name, 1) for name in ("$", "euro", "yen", "rupee")}


def is_unit(word: str) -> bool:
    """Return whether a word of two or more letters is the name of a unit."""
    known = word in _NAMES or word.lower() in _NAMES
    return len(word) > 1 and known and word not in _PLAIN_EXCLUDED


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


_CHANGES = word_set(LISTS["changes"])
"""Words after or before a value that make it another value, or none."""
_QUANTITIES = word_set("point remainder base power root percentage so")
"""Words that change a value behind it, and are the name of a value before it."""
_CHANGES_BEFORE = (_CHANGES - _QUANTITIES) | word_set(
    "negative half square cube log opposite first was"
)
_NO_NOUN = word_set(LISTS["no_noun"])
"""Words that cannot begin a noun phrase."""
_PHRASES = re.compile(LISTS["after_value"])
_CONDITION = re.compile(r"\b(?:such that|with|where|satisfying|for which)$|(?<=[a-z]{3}) of$")
_INTRODUCTION = re.compile(LISTS["before_value"], re.DOTALL)
_FUNCTION = re.compile(r"\b(?:answer|ans|number|integer|value|(solution|point|vector|set|pair))\Z")
_SHORT = word_set(LISTS["short"])
"""Short words that are not products of letters."""
_FUNCTION_OF = re.compile(rf"(?:{'|'.join(sorted(FUNCTIONS))})[a-z]")
_WORD = re.compile(r"[A-Za-z]+(?:[-'][A-Za-z]+)*")
_MAX_UNIT = 8
_ENDS_VALUE = frozenset([")", "]", "}", "\\}", "!", "%", "°", "'", "∞", "|", "⌋", "⌉", "$", "∅"])
_SEPARATORS = frozenset([";", "or", "and", "∪"])
_MATHEMATICS = frozenset("(){},_.':") | {"\\{", "\\}"}


def strip_phrases(tokens: Tokens) -> Tokens:
    """Remove the words before and after a value; keep a multiplier and a unit after it.

    Tokens that are not a value with such words are returned as they are.
    """
    if not any(token.kind in ("text", "word") or token.text == ":" for token in tokens):
        return tokens
    return _without_noun(_without_introduction(tokens))


def is_prose(token: Token) -> bool:
    """Return whether a token is words, not a product of letters."""
    if token.kind != "word":
        return token.kind == "text"
    return token.text.lower() in _SHORT or (len(token.text) >= 4 and not token.text.isupper())


def _without_introduction(tokens: Tokens) -> Tokens:
    end = 0
    while end < len(tokens) and (
        tokens[end].kind in ("text", "word") or tokens[end].text in "aAI#"
    ):
        end += 1
    colon = end < len(tokens) and tokens[end].text == ":"
    if end == 0 and [token.text for token in tokens[1:3]] == [":", "("]:
        return tokens[2:]  # P: (3, 4)
    if not 0 < end < len(tokens) - colon:
        return tokens
    said = " ".join(token.text for token in tokens[:end]).strip() + ":" * colon
    if is_currency(said):
        return [*tokens[end:], Token("text", said)]
    introduces = any(map(is_prose, tokens[:end])) and _INTRODUCTION.fullmatch(said.lower())
    if tokens[end].text == "(" and (function := _FUNCTION.search(said.lower())):
        inside = [token.text for token in tokens[end : closing_bracket(tokens, end)]]
        introduces = introduces and function[1] and "," in inside  # vertex (1, 2)
    if not introduces or _changed(_split_words(said), _CHANGES_BEFORE):
        return tokens
    return tokens[end + colon :]


def _without_noun(tokens: Tokens) -> Tokens:
    first = _noun_position(tokens)
    if first is None or split_unit(tokens[first - 1 :])[1] is not None:
        return tokens
    words = _phrase(tokens[first:])
    if words is None:
        return tokens
    kept, words = _measure(words)
    if not words and [token.kind for token in tokens[first + 1 :]][:1] == ["name"]:
        return tokens  # 5 cm x
    aside = tokens[first].text.lstrip()[:1] in (",", "(", "-")
    if words == ["times"] and first == len(tokens) - 1:
        return tokens[:first]
    noun = aside or not words or kept or _PHRASES.match(" ".join(words))
    if not noun and (words[0] in _NO_NOUN or (len(words[0]) < 3 and words[0] != "sq")):
        return tokens
    return tokens if _changed(words, _CHANGES) else [*tokens[:first], *kept]


def _noun_position(tokens: Tokens) -> int | None:
    """The first token of the words after a value, outside brackets."""
    depth = 0
    for index, token in enumerate(tokens):
        aside = token.text == "(" and any(map(is_prose, tokens[index + 1 : index + 2]))
        before = tokens[index - 1]
        if index and depth == 0 and (aside or _starts_noun(token, before)):
            article = index == 1 and before.text in ("a", "A", "I")
            ends = before.kind in ("number", "name") or before.text in _ENDS_VALUE
            return index if ends and not article else None
        if token.kind == "begin" or is_prose(token):
            return None
        depth += nesting(token)
    return None


def _starts_noun(token: Token, before: Token) -> bool:
    if token.kind == "text":
        return True
    if token.kind != "word" or not (token.spaced or is_unit(token.text)):
        return False
    if token.text in ("of", "is", "per") or (before.kind == "number" and is_unit(token.text)):
        return True
    return is_prose(token) and not _FUNCTION_OF.fullmatch(token.text)


def _phrase(tokens: Tokens) -> list[str] | None:
    """The words of a phrase; None if it holds a second value or an operator."""
    said, depth, condition = "", 0, False
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        text = token.text
        if token.kind in ("text", "word"):
            said += " " + re.sub(r"\\.", " ", text)
            condition = condition or bool(_CONDITION.search(said.lower().rstrip()))
            continue
        words_follow = following is not None and is_prose(following)
        if text == "-" and words_follow and not token.spaced:
            said = f"{said}-{following.text}" if following else said
        elif text in _SEPARATORS or token.kind in ("begin", "end"):
            return None
        elif text == "/" or (text == "," and depth == 0):
            if not words_follow:
                return None
        elif not condition and token.kind != "name" and text not in _MATHEMATICS:
            condition = text == "[" and said.lower().endswith((" in", " on"))
            if not condition:
                return None
        depth += nesting(token)
    if re.search(r"[0-9=<>+*]", said):
        return None
    return _split_words(said)


def _measure(words: list[str]) -> tuple[Tokens, list[str]]:
    """The multipliers, the percent sign and the unit at the start of a phrase, and the rest."""
    kept: Tokens = []
    while words and words[0] in SCALES:
        kept.append(Token("text", words[0]))
        words = words[1:]
    if words[:1] == ["percent"]:
        return [*kept, Token("symbol", "%")], words[1:]
    for end in range(min(len(words), _MAX_UNIT), 0, -1):
        if "in" not in words[:end] and read_unit(" ".join(words[:end])) is not None:
            return [*kept, Token("text", " ".join(words[:end]))], words[end:]
    return kept, words


def _split_words(text: str) -> list[str]:
    """Words in lower case; single letters and units such as MeV and kHz keep their case."""
    return [w if len(w) == 1 or is_unit(w) else w.lower() for w in _WORD.findall(text)]


def _changed(words: list[str], changes: frozenset[str]) -> bool:
    return any(
        word in changes or word.endswith("n't") or NUMBER_WORDS.issuperset(word.split("-"))
        for word in words
    )
