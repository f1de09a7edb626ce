"""Parse equations and inequalities: a named value, an interval, or a relation.

The answer of an equation is its right side if its left side contains names: m + n = 33. It is an
equation to solve, and no value, if its right side is 0 and its left side is more than a name, or if
its left side is a sum of numbers and one name: x + 1 = 5.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from rlobj.answers.expression_parser import parse_expression
from rlobj.answers.expressions import Tree, names
from rlobj.answers.lexer import Tokens, Unreadable, join_text
from rlobj.answers.rationals import linear
from rlobj.answers.structures import (
    INFINITY,
    MINUS_INFINITY,
    REALS,
    Chain,
    Interval,
    Items,
    Named,
    Region,
    Relation,
    Rounded,
    Scalar,
    Structure,
    Words,
    names_in,
    scalar,
    tree_of,
)
from rlobj.answers.vocabulary import CONSTANTS, LISTS

RELATIONS = frozenset(["=", "<", ">", "<=", ">=", "!=", "≈", "≡", "∈", "∉"])
_EQUAL = frozenset("=≡≈")
_FLIPPED = {">": "<", ">=": "<="}
_FIGURE = re.compile(
    r"(?:[A-Z](?:_[0-9])?){2,4}|m?(?:angle|triangle)(?:[A-Z](?:_[0-9])?){1,4}|\|[A-Z]{1,2}\|"
)
"""Names of lengths, angles and areas; in a gold answer, other products are equations."""
_DOUBTFUL = re.compile(LISTS["doubtful"])
"""Words before a value that deny it, doubt it or change it."""
_OPERATORS = frozenset(("int", "iint", "iiint", "lim", "sum", "prod"))

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
    if _DOUBTFUL.search(" ".join(token.text for token in sides[0]).lower()):
        raise Unreadable("a denied or supposed relation")
    if symbols in (["∈"], ["∉"]):
        region = parse_side(sides[1])
        if symbols == ["∉"]:
            region = Region("∖", (REALS, region))
        elif isinstance(region, Items) and len(region.items) == 1:
            region = region.items[0]
        return Named(join_text(sides[0]), region)
    if set(symbols) <= _EQUAL:
        while len(sides[0]) > 1 and sides[0][0].kind == "text":  # the line y = 2x
            sides[0] = sides[0][1:]
        return _equation(sides, symbols, parse_side)
    if set(symbols) & (_EQUAL | {"∈", "∉"}):
        raise Unreadable("mixed relations")
    return _inequality([parse_expression(side) for side in sides], symbols)


def _equation(sides: list[Tokens], symbols: list[str], parse_side: ParseSide) -> Structure:
    """Parse a chain of equals signs: the sides without names are the value, the first other side
    is its name."""
    values = [_side(side, parse_side) for side in sides]
    labels = [n for n, side in enumerate(sides) if _is_label(side, values[n])]
    valued = [n for n in range(len(sides)) if n not in labels]
    if not valued:  # y = 2x + 3
        valued = list(range(1, len(sides)))
    elif any(
        tree is not None and len(names(tree)) == 1 and _has_constant(tree)  # x + 1 = 5
        for tree in (tree_of(values[n]) for n in labels)
    ):
        return _relation(values)
    if unread := [n for n in valued if values[n] is None]:
        parse_side(sides[unread[0]])  # raises the error
    value = _chain([values[n] for n in valued], ["=", *symbols], valued)  # type: ignore[misc]
    if not labels:
        return value
    tree = tree_of(values[labels[0]])
    spelled = join_text(sides[labels[0]]).replace(" ", "")
    if is_name(tree):
        return Named(_name(tree), value, tree)
    if isinstance(value, Scalar) and value.value == 0 and len(sides) == 2:
        if tree is None and re.search("[-+^]", spelled):
            raise Unreadable("an equation whose left side is not readable")
        if tree is not None and tree[0] != "mod":
            return _relation(values)
    figure = _FIGURE.fullmatch(spelled) and not names_in(value)
    return Named(spelled, value, tree, tree is not None and not figure)


def _side(tokens: Tokens, parse_side: ParseSide) -> Structure | None:
    try:
        return parse_side(tokens)
    except Unreadable:
        return None


def _is_label(tokens: Tokens, value: Structure | None) -> bool:
    """Return whether a side has names: x, m + n, f(3), the area, P(A and B)."""
    if value is None:
        return any(t.kind in ("name", "word", "text", "command") or t.text == "…" for t in tokens)
    if isinstance(value, Scalar) and value.tree is None:
        return bool(_free_letters(tokens)) or sum(token.text in _OPERATORS for token in tokens) > 1
    return isinstance(value, Words) or bool(names_in(value))


def _free_letters(tokens: Tokens) -> set[str]:
    """Letters of an integral, limit or sum, without its variable."""
    free, bound = set[str](), {"d"}
    for n, token in enumerate(tokens):
        if token.kind not in ("name", "word"):
            continue
        if token.kind == "word" or (n and tokens[n - 1].text == "d"):
            bound |= {token.text[-1]} if token.text[0] == "d" or token.kind == "name" else set()
        if n > 1 and tokens[n - 1].text == "{" and tokens[n - 2].text == "_":
            bound.add(token.text)
        free |= set(token.text) if token.kind == "word" else {token.text}
    return free - bound - set(CONSTANTS)


def _has_constant(tree: Tree) -> bool:
    """Return whether a sum has a number among its terms."""
    if isinstance(tree, Fraction):
        return True
    return tree[0] in "+-" and any(map(_has_constant, tree[1:]))


def _relation(values: Sequence[Structure | None]) -> Relation:
    trees = [tree_of(value) for value in values]
    if len(trees) != 2 or None in trees:
        raise Unreadable("a chain of equations")
    return Relation("=", *trees)


def _chain(values: list[Structure], symbols: list[str], valued: list[int]) -> Structure:
    """Equal values; the last may be rounded. `symbols` has the symbol before each side."""
    symbols = [symbols[n] for n in valued]
    if len(values) == 1:
        return Rounded(None, values[0]) if symbols[0] == "≈" else values[0]
    if "≈" in symbols[:-1]:
        raise Unreadable("a rounding inside a chain")
    if symbols[-1] == "≈":
        *exact, about = values
        return Rounded(exact[0] if len(exact) == 1 else Chain(tuple(exact)), about)
    return Chain(tuple(values))


def _inequality(trees: list[Tree], symbols: list[str]) -> Structure:
    if set(symbols) <= set(_FLIPPED):
        trees, symbols = trees[::-1], [_FLIPPED[symbol] for symbol in reversed(symbols)]
    if set(symbols) & set(_FLIPPED) or (len(trees) > 2 and "!=" in symbols) or len(trees) > 3:
        raise Unreadable("inequalities that do not go together")
    if len(trees) == 3 and is_name(trees[1]):
        low, name, high = trees
        closed = (symbols[0] == "<=", symbols[1] == "<=")
        return Interval(scalar(low), scalar(high), closed, _name(name))
    parts = [
        _solved(left, symbol, right)
        for (left, right), symbol in zip(itertools.pairwise(trees), symbols, strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    variables = {getattr(part, "variable", None) for part in parts}
    if None in variables or len(variables) > 1:
        raise Unreadable("a chain of inequalities about no name")
    return Region("∩", tuple(parts), variables.pop())


def _solved(left: Tree, symbol: str, right: Tree) -> Structure:
    """Solve an inequality that is linear in a name, or in the absolute value of such a sum."""
    for name, bound in ((left, right), (right, left)):
        if is_name(name) and name[1] not in names(bound):
            if symbol == "!=":
                return Relation("!=", left, right) if names(bound) else _other(name, bound)
            return _half_line(bound, name is left, symbol == "<=", _name(name))
    variables = names(left) | names(right)
    if len(variables) == 1 and symbol != "!=":
        [name] = variables
        if (line := linear(("-", left, right), name)) and line[0]:
            slope, rest = line
            bound = ("/", ("neg", rest), slope)
            return _half_line(bound, slope > 0, symbol == "<=", name)
        for inside, bound in ((left, right), (right, left)):
            if names(bound) or (size := _size(inside, bound)) is None:
                continue
            (inside, bound), small = size, inside is left
            low, high = (("neg", bound), bound) if small else (bound, ("neg", bound))
            parts = [_solved(low, symbol, inside), _solved(inside, symbol, high)]
            if all(isinstance(part, Interval) for part in parts):
                return Region("∩" if small else "∪", tuple(parts), name)
    return Relation(symbol, left, right)


def _size(tree: Tree, bound: Tree) -> tuple[Tree, Tree] | None:
    """Return x and b if the tree is |x| with bound b, or x^2 with bound b^2."""
    if not isinstance(tree, tuple):
        return None
    if tree[0] == "^" and tree[2] == Fraction(2):
        return tree[1], ("root", bound, Fraction(2))
    return (tree[1], bound) if tree[0] == "abs" else None


def _half_line(bound: Tree, below: bool, closed: bool, variable: str) -> Interval:
    low, high = (MINUS_INFINITY, bound) if below else (bound, INFINITY)
    ends = (closed and not below, closed and below)
    return Interval(scalar(low), scalar(high), ends, variable)


def _other(name: Tree, value: Tree) -> Region:
    return Region("∖", (REALS, Items((scalar(value),), braces=True)), _name(name))


def is_name(tree: Tree) -> bool:
    """Return whether a tree is one name, or a function value."""
    return isinstance(tree, tuple) and tree[0] in ("name", "apply")


def _name(tree: Tree) -> str:
    return tree[1] if tree[0] == "name" else f"{tree[1]}({tree[2:]})"
