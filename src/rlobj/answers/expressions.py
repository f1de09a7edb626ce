"""Expressions as trees of tuples.

A tree is a `Fraction`, or a tuple whose first item is its kind:

    ("name", "x_1")   ("const", "pi")   (operator, left, right)   (function, argument, ...)
    ("sum", variable, low, high, term)  ("prod", variable, low, high, factor)

Operators are + - * / ^ and ±, ∓ (with two operands); "neg" and "!" take one. An unknown function
at an argument, f(x), is ("apply", "f", x). Names keep their case, subscripts, primes and accents.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rlobj.answers.lexer import Unreadable

Tree = Any


class Unsupported(Unreadable):
    """Mathematics that this parser does not support, but a computer algebra system may."""


def names(tree: Tree) -> frozenset[str]:
    """Return the names in a tree, including unknown functions."""
    if isinstance(tree, Fraction):
        return frozenset()
    here = frozenset[str]()
    if tree[0] in ("name", "apply"):
        here = frozenset((tree[1],))
    for part in tree[1:]:
        if not isinstance(part, str):
            here |= names(part)
    return here - {tree[1][1]} if tree[0] in ("sum", "prod") else here


def parts_of(tree: Tree) -> Iterator[tuple[Any, ...]]:
    """Yield the operators and functions in a tree with their operands, the outermost first."""
    if isinstance(tree, tuple):
        yield tree
        for part in tree[1:]:
            yield from parts_of(part)


def renamed(tree: Tree, new: dict[str, str]) -> Tree:
    """Return a tree with other names."""
    if not isinstance(tree, tuple):
        return tree
    if tree[0] in ("name", "apply"):
        tree = (tree[0], new.get(tree[1], tree[1]), *tree[2:])
    return (tree[0], *(renamed(part, new) for part in tree[1:]))


def expand_plus_minus(tree: Tree) -> list[Tree]:
    """Return one tree for each choice of sign; all ± and ∓ of a tree change together."""
    trees = [_signed(tree, up) for up in (True, False)]
    return trees if trees[0] != trees[1] else [tree]


def _signed(tree: Tree, up: bool) -> Tree:
    if isinstance(tree, (Fraction, str)):
        return tree
    operator = tree[0]
    if operator in "±∓":
        operator = "+" if (operator == "±") is up else "-"
    return (operator, *(_signed(part, up) for part in tree[1:]))
