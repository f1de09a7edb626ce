"""Parse matrices."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from rlobj.answers.expression_parser import parse_expression
from rlobj.answers.expressions import Tree
from rlobj.answers.lexer import Token, Unreadable, is_enclosed, join_text, split
from rlobj.answers.structures import Matrix, Scalar, Structure, scalar
from rlobj.answers.vocabulary import word_set

_MATRICES = word_set("matrix pmatrix bmatrix Bmatrix array smallmatrix cases dcases")

Tokens = list[Token]
ParseSide = Callable[[Tokens], Structure]


def parse_matrix(tokens: Tokens, parse_side: ParseSide) -> Structure:
    """Parse a matrix, or a number times a matrix.

    Raises:
        Unreadable: it is another environment, or more than that.
    """
    first = next(n for n, token in enumerate(tokens) if token.kind in ("begin", "end"))
    opening = tokens[first]
    if opening.kind == "end" or not is_enclosed(tokens, first):
        raise Unreadable("an environment among other things")
    if opening.text not in _MATRICES:
        raise Unreadable(f"an environment {opening.text}")
    minus = join_text(tokens[:first]) == "-"
    factor = Fraction(-1) if minus else parse_expression(tokens[:first]) if first else None
    lines = split(tokens[first + 1 : -1], frozenset(("\\\\",)))[0]
    rows = [
        tuple(_scaled(factor, parse_side(cell)) for cell in split(line, frozenset("&"))[0])
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
