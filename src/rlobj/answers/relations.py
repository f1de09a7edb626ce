"""Parse equations and inequalities: a named value, an interval, or a relation."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from rlobj.answers.expression_parser import parse_expression
from rlobj.answers.expressions import Tree, names
from rlobj.answers.lexer import Token, Unreadable, join_text
from rlobj.answers.structures import (
    INFINITY,
    Chain,
    Interval,
    Named,
    Relation,
    Rounded,
    Scalar,
    Structure,
    Union,
    scalar,
)

RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "≈", "≡", "∈"])
_EQUAL = frozenset("=≡≈")
_FLIPPED = {">": "<", ">=": "<="}
_FIGURE = re.compile(
    r"(?:[A-Z](?:_[0-9])?){2,4}|m?angle(?:[A-Z](?:_[0-9])?){1,4}|\|[A-Z]{1,2}\||\[[A-Z]{3,6}\]"
    r"|overline:[A-Z]+|[A-Z]\(.*\)|\([a-z](?:,[a-z])+\)"
)
"""Names of lengths, angles, areas, probabilities and points."""
_MINUS_INFINITY = ("neg", INFINITY)

Tokens = list[Token]
ParseSide = Callable[[Tokens], Structure]


def parse_relation(sides: list[Tokens], symbols: list[str], parse_side: ParseSide) -> Structure:
    """Return the structure of sides with relation symbols between them.

    Args:
        sides: the tokens of each side; the first side may be empty, as in "= 5".
        symbols: the relation symbols, one fewer than sides.
        parse_side: parses a side that is a value.

    Raises:
        Unreadable: a side is missing, or the relations cannot be combined.
    """
    if not sides[0] and symbols[0] in _EQUAL:
        about = symbols[0] == "≈"
        sides, symbols = sides[1:], symbols[1:]
        if not symbols:
            return Rounded(None, parse_side(sides[0])) if about else parse_side(sides[0])
    if not all(sides):
        raise Unreadable("a relation without a side")
    if symbols == ["∈"]:
        return Named(join_text(sides[0]), parse_side(sides[1]))
    if set(symbols) <= _EQUAL:
        return _equation(sides, symbols, parse_side)
    if set(symbols) & (_EQUAL | {"∈"}):
        raise Unreadable("mixed relations")
    return _inequality([parse_expression(side) for side in sides], symbols)


def reals_without(points: Sequence[Structure], variable: str | None = None) -> Union:
    """Return all real numbers except the points."""

    def size(point: Structure) -> Fraction:
        if not isinstance(point, Scalar) or point.value is None:
            raise Unreadable("a number left out that is not rational")
        return point.value

    ends = [scalar(_MINUS_INFINITY), *sorted(points, key=size), scalar(INFINITY)]
    pairs = itertools.pairwise(ends)
    return Union(tuple(Interval(low, high, (False, False)) for low, high in pairs), variable)


def _equation(sides: list[Tokens], symbols: list[str], parse_side: ParseSide) -> Structure:
    for name, *values in (sides, sides[::-1]) if symbols in (["="], ["≡"]) else (sides,):
        label = _label(name)
        if label is None or (name is not sides[0] and not _is_constant(values[0])):
            continue
        if (value := _labelled(label, values, symbols, parse_side)) is not None:
            return value
    if symbols == ["≈"]:
        return Rounded(parse_side(sides[0]), parse_side(sides[1]))
    trees = [parse_expression(side) for side in sides]
    if not any(map(names, trees)):
        return _chain([parse_side(side) for side in sides], symbols)
    if len(trees) != 2:
        raise Unreadable("a chain of equations")
    return Relation("=", *trees)


def _is_constant(tokens: Tokens) -> bool:
    """Return whether 5 = x means x = 5; b v = f stays an equation."""
    try:
        return not names(parse_expression(tokens))
    except Unreadable:
        return True  # a tuple, a list, words


def _labelled(
    label: tuple[str, Tree], sides: list[Tokens], symbols: list[str], parse_side: ParseSide
) -> Named | None:
    name, tree = label
    values = [parse_side(side) for side in sides]
    if tree is None and any(isinstance(v, Scalar) and v.tree and names(v.tree) for v in values):
        return None  # AB = 5 names a length, MR = SRMC is an equation
    if len(values) > 1:
        return Named(name, _chain(values, symbols[1:]), tree)
    value = Rounded(None, values[0]) if symbols[0] == "≈" else values[0]
    return Named(name, value, tree)


def _chain(values: list[Structure], symbols: list[str]) -> Structure:
    """Equal values; the last may be rounded."""
    if "≈" in symbols[:-1]:
        raise Unreadable("a rounding inside a chain")
    if symbols[-1] == "≈":
        *exact, about = values
        return Rounded(exact[0] if len(exact) == 1 else Chain(tuple(exact)), about)
    return Chain(tuple(values))


def _label(tokens: Tokens) -> tuple[str, Tree] | None:
    """Name on one side of an equation: x, f(x), AB, the area; None if the side is a value."""
    if tokens[0].kind == "text":
        return join_text(tokens), None
    try:
        tree = parse_expression(tokens)
    except Unreadable:
        tree = None
    if _is_name(tree):
        return _name(tree), tree
    spelled = join_text(tokens).replace(" ", "")
    return (spelled, None) if _FIGURE.fullmatch(spelled) else None


def _inequality(trees: list[Tree], symbols: list[str]) -> Structure:
    if set(symbols) <= set(_FLIPPED):
        trees, symbols = trees[::-1], [_FLIPPED[each] for each in reversed(symbols)]
    if set(symbols) & set(_FLIPPED) or len(trees) > 3:
        raise Unreadable("inequalities that do not go together")
    if len(trees) == 3:
        low, name, high = trees
        if not _is_name(name) or "!=" in symbols:
            raise Unreadable("a chain of inequalities about no name")
        closed = (symbols[0] == "<=", symbols[1] == "<=")
        return Interval(scalar(low), scalar(high), closed, _name(name))
    left, right = trees
    [symbol] = symbols
    for name, bound in ((left, right), (right, left)):
        if _is_name(name) and name[1] not in names(bound):
            if symbol == "!=":
                return Relation("!=", left, right) if names(bound) else _other(name, bound)
            low, high = (_MINUS_INFINITY, bound) if name is left else (bound, INFINITY)
            closed = (name is right and symbol == "<=", name is left and symbol == "<=")
            return Interval(scalar(low), scalar(high), closed, _name(name))
    return Relation(symbol, left, right)


def _other(name: Tree, value: Tree) -> Union:
    return reals_without([scalar(value)], _name(name))


def _is_name(tree: Tree) -> bool:
    return isinstance(tree, tuple) and tree[0] in ("name", "apply")


def _name(tree: Tree) -> str:
    return tree[1] if tree[0] == "name" else f"{tree[1]}({tree[2:]})"
