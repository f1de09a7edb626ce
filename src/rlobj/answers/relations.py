"""Equations and inequalities: a name and its value, an interval, or a relation as it stands."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from rlobj.answers.expressions import Tree, names
from rlobj.answers.grammar import parse
from rlobj.answers.lexer import Token, Unreadable, spell
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

__all__ = ["RELATIONS", "all_but", "related"]

RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "≈", "≡", "∈"])
_EQUAL = frozenset("=≡≈")
_FLIPPED = {">": "<", ">=": "<="}
_FIGURE = re.compile(
    r"(?:[A-Z](?:_[0-9])?){2,4}|m?angle(?:[A-Z](?:_[0-9])?){1,4}|\|[A-Z]{1,2}\||\[[A-Z]{3,6}\]"
    r"|overline:[A-Z]+|[A-Z]\(.*\)|\([a-z](?:,[a-z])+\)"
)
"""Lengths, angles, areas, probabilities, and coordinates together."""
_MINUS_INFINITY = ("neg", INFINITY)

Tokens = list[Token]
Read = Callable[[Tokens], Structure]


def related(sides: list[Tokens], symbols: list[str], read: Read) -> Structure:
    """The structure of sides with relation symbols between them.

    Args:
        sides: runs of tokens; the first may be empty, as in "= 5".
        symbols: one fewer than sides.
        read: reads a side that is a value.

    Raises:
        Unreadable: a side is missing, or the relations do not go together.
    """
    if not sides[0] and symbols[0] in _EQUAL:
        about = symbols[0] == "≈"
        sides, symbols = sides[1:], symbols[1:]
        if not symbols:
            return Rounded(None, read(sides[0])) if about else read(sides[0])
    if not all(sides):
        raise Unreadable("a relation without a side")
    if symbols == ["∈"]:
        return Named(spell(sides[0]), read(sides[1]))
    if set(symbols) <= _EQUAL:
        return _equation(sides, symbols, read)
    if set(symbols) & (_EQUAL | {"∈"}):
        raise Unreadable("mixed relations")
    return _inequality([parse(side) for side in sides], symbols)


def all_but(points: Sequence[Structure], variable: str | None = None) -> Union:
    """All real numbers without some."""

    def size(point: Structure) -> Fraction:
        if not isinstance(point, Scalar) or point.value is None:
            raise Unreadable("a number left out that is not rational")
        return point.value

    ends = [scalar(_MINUS_INFINITY), *sorted(points, key=size), scalar(INFINITY)]
    pairs = itertools.pairwise(ends)
    return Union(tuple(Interval(low, high, (False, False)) for low, high in pairs), variable)


def _equation(sides: list[Tokens], symbols: list[str], read: Read) -> Structure:
    for name, *values in (sides, sides[::-1]) if symbols in (["="], ["≡"]) else (sides,):
        label = _label(name)
        if label is None or (name is not sides[0] and not _is_constant(values[0])):
            continue
        if (value := _labelled(label, values, symbols, read)) is not None:
            return value
    if symbols == ["≈"]:
        return Rounded(read(sides[0]), read(sides[1]))
    trees = [parse(side) for side in sides]
    if not any(map(names, trees)):
        return _chain([read(side) for side in sides], symbols)
    if len(trees) != 2:
        raise Unreadable("a chain of equations")
    return Relation("=", *trees)


def _is_constant(tokens: Tokens) -> bool:
    """Whether 5 = x reads as x = 5; an equation such as b v = f stays one."""
    try:
        return not names(parse(tokens))
    except Unreadable:
        return True  # a tuple, a list, words


def _labelled(
    label: tuple[str, Tree], sides: list[Tokens], symbols: list[str], read: Read
) -> Named | None:
    name, tree = label
    values = [read(side) for side in sides]
    if tree is None and any(isinstance(v, Scalar) and v.tree and names(v.tree) for v in values):
        return None  # AB = 5 names a length, MR = SRMC is an equation
    if len(values) > 1:
        return Named(name, _chain(values, symbols[1:]), tree)
    value = Rounded(None, values[0]) if symbols[0] == "≈" else values[0]
    return Named(name, value, tree)


def _chain(values: list[Structure], symbols: list[str]) -> Structure:
    """Equal values, the last of them perhaps a rounding."""
    if "≈" in symbols[:-1]:
        raise Unreadable("a rounding inside a chain")
    if symbols[-1] == "≈":
        *exact, about = values
        return Rounded(exact[0] if len(exact) == 1 else Chain(tuple(exact)), about)
    return Chain(tuple(values))


def _label(tokens: Tokens) -> tuple[str, Tree] | None:
    """What stands for a value in an equation: x, f(x), AB, the area; None if it is a value."""
    if tokens[0].kind == "text":
        return spell(tokens), None
    try:
        tree = parse(tokens)
    except Unreadable:
        tree = None
    if _is_name(tree):
        return _name(tree), tree
    spelled = spell(tokens).replace(" ", "")
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
    return all_but([scalar(value)], _name(name))


def _is_name(tree: Tree) -> bool:
    return isinstance(tree, tuple) and tree[0] in ("name", "apply")


def _name(tree: Tree) -> str:
    return tree[1] if tree[0] == "name" else f"{tree[1]}({tree[2:]})"
