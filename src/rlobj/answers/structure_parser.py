"""Parse the text of an answer into its structure."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from fractions import Fraction

from rlobj.answers.expression_parser import parse_expression
from rlobj.answers.expressions import Tree, Unsupported, expand_plus_minus, names
from rlobj.answers.lexer import Token, Unreadable, closing_bracket, join_text, latex, tokenise
from rlobj.answers.normalization import join_comma_groups, normalize
from rlobj.answers.relations import RELATIONS, parse_relation, reals_without
from rlobj.answers.structures import (
    INFINITY,
    Interval,
    Items,
    Matrix,
    Named,
    Rounded,
    Scalar,
    Structure,
    Tuple,
    Union,
    Words,
    scalar,
)
from rlobj.answers.units import MULTIPLES, split_unit
from rlobj.answers.words import is_prose, normalize_words, parse_based_numeral, parse_words

_OPENING = frozenset(["(", "[", "{", "⟨", "⌊", "⌈"]) | {"\\{"}
_MATRICES = frozenset(["matrix", "pmatrix", "bmatrix", "Bmatrix", "array", "smallmatrix"])
_MAX_PARTS = 2000
_LISTS = (frozenset(";"), frozenset((",", "or", "and")), frozenset("∪"))
_PLAIN_COMMANDS = frozenset(("frac", "sqrt"))

_NUMBER_IN_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf)\s*\{((?:\\?\$|[-+])?[0-9][^{}]*)\}")

Tokens = list[Token]


@functools.lru_cache(maxsize=4096)
def parse_structure(text: str, grouped: bool = True) -> Structure:
    r"""Return the structure of an answer.

    Args:
        text: LaTeX or plain mathematics, or words.
        grouped: parse 1,234 as one number.

    Raises:
        Unreadable: the text is none of these.

    Example:
        >>> parse_structure("1,234").value, parse_structure(r"x=\frac12").name
        (Fraction(1234, 1), 'x')
    """
    text = normalize(text)
    if not text:
        raise Unreadable("nothing there")
    if number := _NUMBER_IN_TEXT.fullmatch(text):
        text = number[1]
    if grouped:
        text = join_comma_groups(text) or text
    return parse_based_numeral(text) or parse_words(text) or _structure(tokenise(text))


def _structure(tokens: Tokens) -> Structure:
    """Parse the outermost level: lists, then relations, then brackets, then a value."""
    tokens = _unwrapped(tokens)
    if len(tokens) > 1 and tokens[0].text.lower() in ("either", "both"):
        tokens = tokens[1:]
    if not tokens:
        raise Unreadable("an empty part")
    interval = _outward_interval(tokens)
    if interval is not None:
        return interval
    for separators in _LISTS:
        runs, found = _split(tokens, separators)
        if found:
            return _list_or_union([run for run in runs if run], set(found))
    sides, symbols = _split(tokens, RELATIONS)
    if symbols:
        if tokens[-1].text == "}" and (modular := _modular(tokens, sides[-1])) is not None:
            return modular
        return parse_relation(sides, symbols, _structure)
    return _modular(tokens, tokens) or _single(tokens)


def _unwrapped(tokens: Tokens) -> Tokens:
    while (
        len(tokens) > 1
        and tokens[0][:2] == ("symbol", "{")
        and closing_bracket(tokens, 0) == len(tokens) - 1
    ):
        tokens = tokens[1:-1]
    return tokens


def _split(tokens: Tokens, at: frozenset[str]) -> tuple[list[Tokens], list[str]]:
    """Split at separators outside all brackets; return the parts and the separators."""
    runs: list[Tokens] = [[]]
    found: list[str] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        end = index
        if token.kind == "symbol" and token.text in at:
            runs.append([])
            found.append(token.text)
        else:
            if token.kind == "begin" or (token.kind == "symbol" and token.text in _OPENING):
                end = closing_bracket(tokens, index)
            runs[-1].extend(tokens[index : end + 1])
        index = end + 1
        if len(runs) > _MAX_PARTS:
            raise Unreadable("too many parts")
    return runs, found


def _list_or_union(runs: list[Tokens], separators: set[str]) -> Structure:
    if not runs:
        raise Unreadable("nothing between separators")
    parts = [_structure(run) for run in runs]
    if "∪" in separators:
        return _union(parts)
    if len(parts) == 1:
        return parts[0]
    regions = all(isinstance(_value(part), (Interval, Union)) for part in parts)
    if regions and "or" in separators:
        return _union(parts)
    if isinstance(parts[0], Named) and not any(isinstance(part, Named) for part in parts[1:]):
        name = parts[0]
        parts = [name, *(Named(name.name, part, name.tree) for part in parts[1:])]  # x = 1, 2
    return Items(tuple(parts))


def _value(part: Structure) -> Structure:
    return part.value if isinstance(part, Named) else part


def _union(parts: Sequence[Structure]) -> Structure:
    pieces: list[Structure] = []
    variables: set[str | None] = {None}
    for part in parts:
        variables |= {part.name} if isinstance(part, Named) else set()
        part = _value(part)
        if isinstance(part, Tuple) and len(part.items) == 2 and part.brackets == "()":
            part = Interval(*part.items, (False, False))
        if isinstance(part, Union):
            pieces.extend(part.parts)
        elif isinstance(part, Interval):
            pieces.append(Interval(part.low, part.high, part.closed))
        else:
            pieces.append(part)
        variables.add(getattr(part, "variable", None))
    if len(variables) > 2:
        raise Unreadable("a union over several names")
    return Union(tuple(pieces), next(iter(variables - {None}), None))


def _modular(tokens: Tokens, last: Tokens) -> Named | None:
    r"""Parse `3 \pmod 7` and `x \equiv 3 \pmod 7` as 3 with its modulus as name."""
    positions = [n for n, token in enumerate(last) if token.text == "pmod"]
    if len(positions) != 1 or positions[0] == 0 or last[positions[0]].kind != "command":
        return None
    modulus = join_text(last[positions[0] + 1 :])
    return Named(f"mod {modulus}", _structure(last[: positions[0]]))


def _outward_interval(tokens: Tokens) -> Interval | None:
    """Parse an interval in outward brackets: ]a, b[."""
    first, last = tokens[0][:2], tokens[-1][:2]
    if len(tokens) < 5 or (first != ("symbol", "]") and last != ("symbol", "[")):
        return None
    if first[1] not in "[](" or last[1] not in "[])":
        return None
    runs, found = _split(tokens[1:-1], frozenset(",;"))
    if len(found) != 1:
        return None
    low, high = map(_structure, runs)
    return Interval(low, high, (first[1] == "[", last[1] == "]"))


def _single(tokens: Tokens) -> Structure:
    """Parse one value or one pair of brackets."""
    if tokens[0].kind == "begin" or tokens[-1].kind == "end":
        return _matrix(tokens)
    if tokens[0][:2] == ("symbol", "∅") and len(tokens) == 1:
        return Items((), braces=True)
    if tokens[0].text in _OPENING and closing_bracket(tokens, 0) == len(tokens) - 1:
        bracketed = _bracketed(tokens)
        if bracketed is not None:
            return bracketed
    runs, ratio = _split(tokens, frozenset(":"))
    if ratio and all(runs):
        return Tuple(tuple(map(_structure, runs)), ":")
    runs, minus = _split(tokens, frozenset("∖"))
    if join_text(runs[0]) == "mathbb:R":
        removed = _structure(runs[1]) if len(runs) == 2 else None
        if isinstance(removed, Items):
            return reals_without(removed.items)
        if not minus:
            return Interval(scalar(("neg", INFINITY)), scalar(INFINITY), (False, False))
    return _scalar(tokens)


def _bracketed(tokens: Tokens) -> Structure | None:
    """Parse a set, tuple, interval or matrix in brackets; None for plain parentheses."""
    brackets, inside = tokens[0].text + tokens[-1].text, tokens[1:-1]
    if brackets == "\\{\\}":
        if not inside:
            return Items((), braces=True)
        runs, condition = _split(inside, frozenset((":", "|")))
        if len(condition) == 1:  # {x : ...}: only the condition matters
            return _structure(runs[1])
        whole = _structure(inside)
        if isinstance(whole, Items) and not whole.braces:
            return Items(whole.items, braces=True)
        return Items((whole,), braces=True)
    if brackets not in ("()", "[]", "(]", "[)", "⟨⟩") or not inside:
        return None
    if inside[0].kind == "begin" and closing_bracket(inside, 0) == len(inside) - 1:
        return _matrix(inside)
    runs, found = _split(
        inside, frozenset((",",)) if ";" not in join_text(inside) else frozenset(";")
    )
    if not found:
        if _split(inside, RELATIONS)[1]:
            return _structure(inside)
        return Tuple((_structure(inside),), "[]") if brackets == "[]" else None
    parts = tuple(_structure(run) for run in runs)
    if len(parts) == 2 and brackets in ("[]", "(]", "[)"):
        return Interval(*parts, (brackets[0] == "[", brackets[1] == "]"))
    return Tuple(parts)


def _matrix(tokens: Tokens) -> Structure:
    first = next(n for n, token in enumerate(tokens) if token.kind in ("begin", "end"))
    opening = tokens[first]
    if opening.kind == "end" or closing_bracket(tokens, first) != len(tokens) - 1:
        raise Unreadable("an environment among other things")
    if opening.text not in _MATRICES:
        raise Unreadable(f"an environment {opening.text}")
    factor = parse_expression(tokens[:first]) if first else None
    lines = _split(tokens[first + 1 : -1], frozenset(("\\\\",)))[0]
    rows = [
        tuple(_scaled(factor, _structure(cell)) for cell in _split(line, frozenset("&"))[0])
        for line in lines
        if line
    ]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(tuple(rows))


def _scaled(factor: Tree | None, entry: Structure) -> Structure:
    if factor is None:
        return entry
    if not isinstance(entry, Scalar) or entry.tree is None:
        raise Unreadable("a factor before a matrix of other things than values")
    return scalar(("*", factor, entry.tree))


def _scalar(tokens: Tokens) -> Structure:
    """Parse a value with its unit, or prose."""
    if tokens[0].text.lower() in ("approximately", "about", "roughly") and len(tokens) > 1:
        return Rounded(None, _structure(tokens[1:]))
    value, unit = split_unit(tokens)
    power = MULTIPLES.get(value[-1].text.lower()) if len(value) > 1 else None
    if power is not None:
        value = value[:-1]
    if is_prose(value):
        return Words(normalize_words(" ".join(token.text for token in tokens)))
    source = latex(value)
    try:
        tree, unit = _measured(value) if unit is None else (parse_expression(value), unit)
    except Unsupported:
        return Scalar(None, None, source, unit)
    if power is not None:
        tree = ("*", tree, Fraction(10) ** power)
    decimal = any(t.kind == "number" and not t.text.isdecimal() for t in value) and not names(tree)
    trees = expand_plus_minus(tree)
    if len(trees) > 1:
        return Items(tuple(scalar(each, "", unit, decimal=decimal) for each in trees))
    return scalar(tree, source, unit, decimal=decimal)


def _measured(tokens: Tokens) -> tuple[Tree, frozenset[tuple[str, int]] | None]:
    """Parse a value; a final % or degree sign belongs to all of it: 62 1/2 %, 270/7 degrees."""
    mark = tokens[-1].text
    plain = not any(
        (token.kind == "command" and token.text not in _PLAIN_COMMANDS)
        or (n and token.kind == "symbol" and token.text in "+-±∓")
        for n, token in enumerate(tokens)
    )
    if len(tokens) > 1 and mark in ("%", "°") and plain:
        tree = parse_expression(tokens[:-1])
        if mark == "%":
            return ("/", tree, Fraction(100)), None
        return tree, frozenset({("°", 1)})
    return parse_expression(tokens), None
