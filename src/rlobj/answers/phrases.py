"""Words before and after a value: nouns, and what makes it another value.

Nouns are dropped: "33 ordered pairs" and "there are exactly 33" are 33. "At least 33", "33
factorial" and "33 less than n" are not 33. A unit or a multiplier (million, dozen) after the value
is kept.
"""

from __future__ import annotations

import re

from rlobj.answers.lexer import Token, Tokens, closing_bracket, nesting
from rlobj.answers.units import is_unit, read_unit, split_unit
from rlobj.answers.vocabulary import FUNCTIONS, LISTS, NUMBER_WORDS, SCALES, word_set

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
    if not 0 < end < len(tokens) - colon:
        return tokens
    said = " ".join(token.text for token in tokens[:end]).strip() + ":" * colon
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
        if text in _SEPARATORS or token.kind in ("begin", "end"):
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
