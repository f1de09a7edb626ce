"""Parse the text of an answer into its structure."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from fractions import Fraction

from rlobj.answers.conditions import is_condition, without_condition, without_layout
from rlobj.answers.expression_parser import parse_expression
from rlobj.answers.expressions import Tree, Unsupported, expand_plus_minus, names
from rlobj.answers.lexer import (
    Token,
    Tokens,
    Unreadable,
    is_enclosed,
    join_text,
    latex,
    split,
    tokenise,
)
from rlobj.answers.normalization import join_comma_groups, normalize
from rlobj.answers.phrases import is_prose, strip_phrases
from rlobj.answers.regions import as_region
from rlobj.answers.relations import RELATIONS, parse_relation
from rlobj.answers.structures import (
    REALS,
    Interval,
    Items,
    Matrix,
    Named,
    Region,
    Rounded,
    Scalar,
    Structure,
    Tuple,
    Words,
    is_infinite,
    scalar,
    without_name,
)
from rlobj.answers.units import PERCENT, Unit, split_unit
from rlobj.answers.vocabulary import BRACKETS, SCALES, word_set
from rlobj.answers.words import (
    normalize_words,
    parse_based_numeral,
    parse_choice,
    parse_special,
    parse_words,
)

_MATRICES = word_set("matrix pmatrix bmatrix Bmatrix array smallmatrix cases dcases")


def _matrix(tokens: Tokens) -> Structure:
    """Parse a matrix.

    Raises:
        Unreadable: it is another environment, or more than that.
    """
    if tokens[0].kind != "begin" or not is_enclosed(tokens):
        raise Unreadable("an environment among other things")
    if tokens[0].text not in _MATRICES:
        raise Unreadable(f"an environment {tokens[0].text}")
    lines = split(tokens[1:-1], frozenset(("\\\\",)))[0]
    rows = [tuple(map(_structure, split(line, frozenset("&"))[0])) for line in lines if line]
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    return Matrix(tuple(rows))


_LISTS = (frozenset(";"), frozenset((",", "or", "and")))
_SET_OPERATORS = ("∪", "∩", "∖")
_PLAIN_COMMANDS = frozenset(("frac", "sqrt"))
_NEXT_EQUATION = re.compile(r"\\q?quad\b(?=\s*\\?[A-Za-z][^=,\\]{0,12}=)")


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
    if (special := parse_special(text)) is not None:
        return special
    if choice := parse_choice(text):
        return Named(f"choice {choice[0]}", parse_structure(choice[1], grouped))
    if "quad" in text:
        text = _NEXT_EQUATION.sub(",", text)
    if grouped:
        text = join_comma_groups(text) or text
    words = parse_words(text)
    if words is not None and not re.search("[0-9]", text):
        return words
    try:
        structure = _structure(tokenise(text))
    except Unreadable:
        if words is None:
            raise
        return words
    return structure if words is None or isinstance(structure, Scalar) else words


def _structure(tokens: Tokens) -> Structure:
    """Parse the outermost level: lists, then relations, then sets and brackets, then a value."""
    tokens = _unwrapped(tokens)
    if len(tokens) == 1 and tokens[0].kind in ("number", "name"):
        return _single(tokens)
    flat = without_layout(tokens) if tokens else None
    tokens = strip_phrases(without_condition(tokens if flat is None else flat))
    if len(tokens) > 1 and tokens[0].text.lower() in ("either", "both"):
        tokens = tokens[1:]
    if not tokens:
        raise Unreadable("an empty part")
    for separators in _LISTS:
        runs, signs = split(tokens, separators)
        if signs:
            return _list([run for run in runs if run], set(signs))
    sides, symbols = split(tokens, RELATIONS)
    return parse_relation(sides, symbols, _structure) if symbols else _single(tokens)


def _unwrapped(tokens: Tokens) -> Tokens:
    while len(tokens) > 1 and tokens[0][:2] == ("symbol", "{") and is_enclosed(tokens):
        tokens = tokens[1:-1]
    return tokens


def _list(runs: list[Tokens], separators: set[str]) -> Structure:
    if not runs:
        raise Unreadable("nothing between separators")
    while len(runs) > 1 and "or" not in separators and _ends_in_condition(runs):
        runs.pop()
    parts = [_structure(run) for run in runs]
    if len(parts) == 1:
        return parts[0]
    values = {part.value if isinstance(part, Scalar) else None for part in parts}
    if "or" in separators and len(values) == 1 and len(set(parts)) > 1 and None not in values:
        return parts[0]  # 0.75 or 3/4
    if (region := _joined(parts, separators)) is not None:
        return region
    name = parts[0]
    if isinstance(name, Named) and not any(isinstance(part, Named) for part in parts[1:]):
        parts = [name, *(Named(name.name, part, name.tree) for part in parts[1:])]  # x = 1, 2
    return Items(tuple(parts), alternatives="or" in separators)


def _ends_in_condition(runs: list[Tokens]) -> bool:
    """Return whether the last part is a condition on the first: 2^n, n > 0."""
    first, last = runs[0], runs[-1]
    related = any(token.text in RELATIONS or token.kind in ("text", "word") for token in last)
    if not related or not is_condition(last) or is_condition(first):
        return False
    if any(token.text == "!=" for token in last) and last[-1].text == first[-1].text:
        return False  # 5, x != 5
    about = {token.text for token in last if token.kind == "name"}
    return not (len(first) > 1 and first[1].text == "=" and first[0].text in about)


def _joined(parts: list[Structure], separators: set[str]) -> Region | None:
    """Join inequalities: "or" gives a union, a comma or "and" an intersection.

    A value with a name is a point of a union: a < 0 or a = 1.
    """
    variables = {getattr(part, "name", getattr(part, "variable", None)) for part in parts}
    regions = [as_region(without_name(part)) for part in parts]
    of_sets = any(isinstance(without_name(part), (Interval, Region)) for part in parts)
    if not of_sets or len(variables) > 1:
        return None
    [variable] = variables
    first = regions[0]
    values = all(isinstance(part, Scalar) for part in parts[1:]) and "or" not in separators
    if values and isinstance(first, Region) and first.operator == "∖":  # x != 1, 2
        return Region("∖", (*first.parts, Items(tuple(parts[1:]), braces=True)), variable)
    if "or" in separators:
        points = [
            region or (without_name(part) if isinstance(without_name(part), Scalar) else None)
            for part, region in zip(parts, regions, strict=True)
        ]
        kept = tuple(point for point in points if point is not None)
        return Region("or", kept, variable) if len(kept) == len(parts) else None
    if variable is None or None in regions:
        return None
    return Region("∩", tuple(region for region in regions if region), variable)


def _combined(tokens: Tokens) -> Structure | None:
    """Parse unions, intersections and differences of sets; None if there is no operator."""
    for n, token in enumerate(tokens[1:-1], 1):
        if token.text == "-" and (tokens[n + 1].text == "\\{" or (n == 1 and _is_reals(tokens[0]))):
            tokens = [*tokens[:n], Token("symbol", "∖"), *tokens[n + 1 :]]
    for operator in _SET_OPERATORS:
        runs, operators = split(tokens, frozenset(operator))
        if not operators:
            continue
        if operator == "∖" and join_text(runs[0]) == "R":  # a bold R
            runs[0] = [Token("name", "mathbb:R")]
        parts = [_structure(run) for run in runs]
        if operator == "∪" and all(isinstance(part, Items) and part.braces for part in parts):
            members = [item for part in parts if isinstance(part, Items) for item in part.items]
            return Items(tuple(dict.fromkeys(members)), braces=True)
        regions = [as_region(without_name(part)) for part in parts]
        kept = tuple(region for region in regions if region is not None)
        if len(kept) < len(parts):
            raise Unreadable("an operation on other things than sets of numbers")
        return Region(operator, kept)
    return None


def _single(tokens: Tokens) -> Structure:
    """Parse one value or one pair of brackets."""
    if tokens[-1].kind == "end":
        return _matrix(tokens)
    if tokens[0][:2] == ("symbol", "∅") and len(tokens) == 1:
        return Items((), braces=True)
    if tokens[0].text in BRACKETS and is_enclosed(tokens):
        bracketed = _bracketed(tokens)
        if bracketed is not None:
            return bracketed
    if (combined := _combined(tokens)) is not None:
        return combined
    runs, ratio = split([_colon(token) for token in tokens], frozenset(":"))
    kinds = [token.kind for token in runs[0]]
    if kinds == ["name"] and ratio and [token.text for token in runs[1][:1]] == ["("]:
        return Named(runs[0][0].text, _structure(runs[1]))  # A: (1, 2)
    if ratio and all(runs):
        return Tuple(tuple(map(_structure, runs)), ":")
    if len(tokens) == 1 and _is_reals(tokens[0]):
        return REALS
    if "_" in (token.text for token in tokens[1:4]) and join_text(tokens)[:1].isdecimal():
        based = parse_based_numeral(join_text(tokens))
        if based is not None:
            return based
    return _scalar(tokens)


def _is_reals(token: Token) -> bool:
    return token.text == "mathbb:R" or token[:2] == ("command", "R")


def _colon(token: Token) -> Token:
    """A ratio may be written with a word: 7 to 32."""
    to = token.kind in ("text", "word") and token.text == "to"
    return Token("symbol", ":", token.spaced) if to else token


def _set(members: Structure) -> Items:
    if isinstance(members, Items) and not members.braces:
        return replace(members, braces=True)
    return Items((without_name(members),), braces=True)


def _bracketed(tokens: Tokens) -> Structure | None:
    """Parse a set, tuple, interval or matrix in brackets; None for plain parentheses."""
    brackets, inside = tokens[0].text + tokens[-1].text, tokens[1:-1]
    if brackets == "\\{\\}":
        if not inside:
            return Items((), braces=True)
        bar = next((n for n, token in enumerate(inside) if token.text in (":", "|")), 0)
        if bar and (bar == 1 or inside[1].text == "∈"):  # {x : ...}: the condition matters
            within = join_text(inside[2:bar])
            members = _structure(inside[bar + 1 :])
            if within not in ("", "mathbb:R"):
                return Tuple((members,), f"∈ {within}")
            return _set(members) if isinstance(without_name(members), (Scalar, Items)) else members
        return _set(_structure(inside))
    if brackets not in ("()", "[]", "(]", "[)", "⟨⟩") or not inside:
        return None
    if inside[0].kind == "begin" and is_enclosed(inside):
        return _matrix(inside)
    separator = ";" if ";" in join_text(inside) else ","
    runs, separators = split(inside, frozenset(separator))
    if not separators:
        if split(inside, RELATIONS)[1] or split(inside, frozenset(_SET_OPERATORS))[1]:
            return _structure(inside)
        return Tuple((_structure(inside),), "[]") if brackets == "[]" else None
    parts = tuple(_structure(run) for run in runs)
    infinite = any(map(is_infinite, parts))
    if len(parts) == 2 and (infinite or brackets in ("[]", "(]", "[)")):
        return Interval(*parts, (brackets[0] == "[", brackets[1] == "]"))
    return Tuple(parts)


def _scalar(tokens: Tokens) -> Structure:
    """Parse a value with its unit, or prose."""
    if tokens[0].text.lower() in ("approximately", "about", "roughly") and len(tokens) > 1:
        return Rounded(None, _structure(tokens[1:]))
    value, unit = split_unit(tokens)
    factor = Fraction(1)
    while len(value) > 1 and (multiple := SCALES.get(value[-1].text.lower())):
        factor *= multiple
        value = value[:-1]
    if any(map(is_prose, value)):
        return Words(normalize_words(" ".join(token.text for token in tokens)))
    source = latex(value)
    try:
        tree, unit = _measured(value) if unit is None else (parse_expression(value), unit)
    except Unsupported:
        return Scalar(None, None, source, unit)
    if factor != 1:
        tree = ("*", tree, factor)
    decimal = any(t.kind == "number" and not t.text.isdecimal() for t in value) and not names(tree)
    both = any(token.text in ("±", "∓") for token in value)
    trees = expand_plus_minus(tree) if both else [tree]
    if len(trees) > 1:
        return Items(tuple(scalar(signed, "", unit, decimal=decimal) for signed in trees))
    return scalar(tree, source, unit, decimal=decimal)


def _measured(tokens: Tokens) -> tuple[Tree, Unit | None]:
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
            return ("/", tree, Fraction(100)), PERCENT
        return tree, frozenset({("°", 1)})
    return parse_expression(tokens), None
