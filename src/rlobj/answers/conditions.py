"""Parts of an answer that are not its value: conditions behind it, and its layout."""

from __future__ import annotations

import re

from rlobj.answers.lexer import Token, Tokens, is_enclosed, nesting, split
from rlobj.answers.vocabulary import LISTS, word_set

_CLAUSE = re.compile(
    r"[\s,;(]*(?:for|where|with|when|whenever|provided|since|because)\b", re.IGNORECASE
)
_WORDS = word_set(LISTS["condition"])
_BOUNDS = frozenset(("<", ">", "<=", ">=", "!=", "∈", "∉"))
_SEPARATORS = frozenset((",", ";", "and"))
_SETS = ("mathbb:Z", "mathbb:N")
_LAYOUTS = word_set(LISTS["layouts"])


def without_condition(tokens: Tokens) -> Tokens:
    """Remove a condition such as "for n > 2" or "(k in Z)" from the end."""
    depth = 0
    for n, token in enumerate(tokens):
        depth += nesting(token)
        begins = depth == 0 and n and token.kind in ("text", "word") and _CLAUSE.match(token.text)
        if begins and is_condition(tokens[n:]):
            return _stripped(tokens[:n])
    if tokens and tokens[-1][:2] == ("symbol", ")"):
        closed = (n for n, t in enumerate(tokens) if t.text == "(" and is_enclosed(tokens, n))
        opening = next(closed, 0)
        inside = tokens[opening + 1 : -1]
        bounded = opening and any(token.text in _BOUNDS for token in inside)
        if bounded and is_condition(inside):
            return _stripped(tokens[:opening])
    return tokens


def _stripped(tokens: Tokens) -> Tokens:
    while tokens and tokens[-1].text in (",", ";"):
        tokens = tokens[:-1]
    return tokens


def is_condition(tokens: Tokens) -> bool:
    """Return whether each part is a bound on a name, a membership, or words for what a name is."""
    pieces = [piece for piece in split(tokens, _SEPARATORS)[0] if piece]
    return bool(pieces) and all(map(_is_clause, pieces))


def _is_clause(tokens: Tokens) -> bool:
    """Return whether this is one part of a condition."""
    words, rest = [], []
    for token in tokens:
        if token.kind in ("text", "word"):
            words += re.findall(r"[A-Za-z-]+", token.text.lower())
        else:
            rest.append(token)
    if not _WORDS.issuperset(words) or any(token.kind in ("begin", "end") for token in rest):
        return False
    names = {token.text for token in rest if token.kind == "name"} - set(_SETS)
    if any(token.text in ("=", "≈", "≡", "or", "±") for token in rest):
        return False
    if any(token.kind == "symbol" and token.text in _BOUNDS for token in rest):
        return bool(names)
    return len(rest) <= 2 and len(names) == len(rest) and bool(names or words)


def without_layout(tokens: Tokens) -> Tokens | None:
    r"""Return the rows of `aligned` and similar environments as a list, a = 1, b = 2.

    Rows that start with an equals sign continue the row before. None if the tokens are no such
    environment, or its columns mean something (piecewise functions, matrices).
    """
    kinds = [token.kind for token in tokens]
    if tokens[0].text == "\\{" and kinds[1:2] == ["begin"] and kinds[-1] == "end":
        tokens = tokens[1:]
    if tokens[0].kind != "begin" or not is_enclosed(tokens):
        return None
    kind, inside = tokens[0].text, tokens[1:-1]
    related = any(token.kind == "symbol" and token.text in ("=", *_BOUNDS) for token in inside)
    plain = len(inside) > 0 and not any(token.text in ("&", "\\\\") for token in inside)
    if kind not in _LAYOUTS and not (kind == "array" and (related or plain)):
        return None
    flat: Tokens = []
    for n, token in enumerate(inside):
        around = {neighbour.text for neighbour in inside[max(0, n - 1) : n + 2]}
        if token[:2] == ("symbol", "&"):
            if kind not in ("align", "aligned", "split") and not around & {"=", *_BOUNDS}:
                return None
        elif token[:2] == ("symbol", "\\\\"):
            after = [neighbour.text for neighbour in inside[n + 1 : n + 3] if neighbour.text != "&"]
            if after[:1] != ["="]:
                flat.append(Token("symbol", ",", True))
        else:
            flat.append(token)
    return flat
