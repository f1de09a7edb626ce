"""Parts of an answer that are not its value: conditions behind it, steps before it, its layout."""

from __future__ import annotations

import re

from rlobj.answers.lexer import NotAnAnswer, Token, is_enclosed, nesting
from rlobj.answers.vocabulary import word_set

Tokens = list[Token]

_IMPLIES = word_set("implies Rightarrow Longrightarrow therefore iff Leftrightarrow ⇒ ⟹ ∴ ⇔")
_CLAUSE = re.compile(
    r"[\s,;(]*(?:for|where|with|when|whenever|provided|since|because)\b", re.IGNORECASE
)
_WORDS = word_set(
    """for where with when whenever provided since because that is are a an any all every each some
    arbitrary positive negative nonnegative non-negative real integer integers number numbers
    constant constants natural complex rational nonzero in and values value of"""
)
_BOUNDS = frozenset(("<", ">", "<=", ">=", "!=", "∈", "∉"))
_WHOLE = ("mathbb:Z", "mathbb:N")
_LAYOUTS = word_set(
    """aligned align alignedat gathered gather split equation multline displaymath math cases
    dcases rcases"""
)


def last_assertion(tokens: Tokens) -> Tokens:
    r"""Return what follows the last implication sign: 2n = 66 \implies n = 33."""
    for n in range(len(tokens) - 1, -1, -1):
        if tokens[n].text in _IMPLIES and tokens[n].kind in ("command", "symbol"):
            if n and not any(token.text in ("=", *_BOUNDS) for token in tokens[:n]):
                raise NotAnAnswer("an implication between values")
            return tokens[n + 1 :]
    return tokens


def without_condition(tokens: Tokens) -> tuple[Tokens, frozenset[str]]:
    """Remove a condition such as "for n > 2" or "(k in Z)" from the end.

    Returns:
        The tokens before it, and the names that are integers by this condition.
    """
    depth = 0
    for n, token in enumerate(tokens):
        depth += nesting(token)
        if depth == 0 and n and token.kind in ("text", "word") and _CLAUSE.match(token.text):
            counters = condition(tokens[n:])
            if counters is not None:
                return _stripped(tokens[:n]), counters
    if tokens and tokens[-1][:2] == ("symbol", ")"):
        closed = (n for n, t in enumerate(tokens) if t.text == "(" and is_enclosed(tokens, n))
        opening = next(closed, 0)
        inside = tokens[opening + 1 : -1]
        if opening and any(token.text in _BOUNDS for token in inside):
            counters = condition(inside)
            if counters is not None:
                return _stripped(tokens[:opening]), counters
    return tokens, frozenset()


def _stripped(tokens: Tokens) -> Tokens:
    while tokens and tokens[-1].text in (",", ";"):
        tokens = tokens[:-1]
    return tokens


def condition(tokens: Tokens) -> frozenset[str] | None:
    """Return the names that a condition makes integers; None if this is no condition.

    Each of its parts is a bound on a name or a membership, or says in words what a name is.
    """
    pieces: list[Tokens] = [[]]
    depth = 0
    for token in tokens:
        depth += nesting(token)
        if depth == 0 and token.kind == "symbol" and token.text in (",", ";", "and"):
            pieces.append([])
        else:
            pieces[-1].append(token)
    found = [_clause(piece) for piece in pieces if piece]
    known = [each for each in found if each is not None]
    if not found or len(known) < len(found):
        return None
    return frozenset(name for names, whole in known if whole for name in names)


def _clause(tokens: Tokens) -> tuple[set[str], bool] | None:
    """Names that one part of a condition is about, and whether it calls them integers."""
    words, rest = [], []
    for token in tokens:
        if token.kind in ("text", "word"):
            words += re.findall(r"[A-Za-z-]+", token.text.lower())
        else:
            rest.append(token)
    if not _WORDS.issuperset(words) or any(token.kind in ("begin", "end") for token in rest):
        return None
    names = {token.text for token in rest if token.kind == "name"} - set(_WHOLE)
    bounded = any(token.kind == "symbol" and token.text in _BOUNDS for token in rest)
    if any(token.text in ("=", "≈", "≡", "or", "±") for token in rest):
        return None
    if not bounded and (len(rest) > 2 or len(names) < len(rest) or not (names or words)):
        return None
    if bounded and not names:
        return None
    whole = bool({"integer", "integers", "natural"} & set(words))
    return names, whole or any(token.text in _WHOLE for token in rest)


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
        around = {each.text for each in inside[max(0, n - 1) : n + 2]}
        if token[:2] == ("symbol", "&"):
            if kind not in ("align", "aligned", "split") and not around & {"=", *_BOUNDS}:
                return None
        elif token[:2] == ("symbol", "\\\\"):
            after = [each.text for each in inside[n + 1 : n + 3] if each.text != "&"]
            if after[:1] != ["="]:
                flat.append(Token("symbol", ",", True))
        else:
            flat.append(token)
    return flat
