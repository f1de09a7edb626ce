r"""Expressions as trees of tuples.

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

from rlobj.answers.lexer import Token, Unreadable, closing_bracket, join_text

Tree = Any

_MAX_DIGITS = 4000
_MAX_SCALE = 4000


class Unsupported(Unreadable):
    """Mathematics that this parser does not support, but a computer algebra system may."""


def names(tree: Tree) -> frozenset[str]:
    """Return the names in a tree, including unknown functions."""
    if isinstance(tree, Fraction):
        return frozenset()
    found = frozenset[str]()
    if tree[0] in ("name", "apply"):
        found = frozenset((tree[1],))
    for part in tree[1:]:
        if not isinstance(part, str):
            found |= names(part)
    return found - {tree[1][1]} if tree[0] in ("sum", "prod") else found


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


def number(text: str) -> Fraction:
    """Parse a numeral: digits, a decimal, e-notation, or 0.1(6) for a repeating decimal.

    Raises:
        Unreadable: it has too many digits or too large an exponent.
    """
    if len(text) > _MAX_DIGITS:
        raise Unreadable("a number too long")
    if "(" in text:
        head, _, cycle = text.rstrip(")").partition("(")
        decimals = len(head.partition(".")[2])
        return number(head) + Fraction(int(cycle), (10 ** len(cycle) - 1) * 10**decimals)
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and (len(exponent) > 5 or abs(int(exponent)) > _MAX_SCALE):
        raise Unreadable("an exponent too large")
    return Fraction(mantissa.rstrip(".") or 0) * Fraction(10) ** int(exponent or 0)


def derivative(tokens: list[Token], start: int) -> tuple[str, int] | None:
    """Return a name for the derivative dM/dt or d^2 x/dt^2, and the position after it."""
    position, parts = start, []
    for _ in range(2):
        if [token[:2] for token in tokens[position : position + 1]] != [("symbol", "{")]:
            return None
        end = closing_bracket(tokens, position)
        parts.append(tokens[position + 1 : end])
        position = end + 1
    above, below = parts
    for part in parts:
        if not part or (part[0].text[0] not in "d∂" and part[0].text != "partial"):
            return None
        operators = any(token.text in ("+", "-", "*", "/", "(", "!", "frac") for token in part)
        if operators or part[0].kind not in ("name", "word"):
            return None
    if (len(below) == 1 and len(below[0].text) == 1) or below[0].kind == "number":
        return None
    return f"d:{join_text(above)}/{join_text(below)}".replace(" ", ""), position
