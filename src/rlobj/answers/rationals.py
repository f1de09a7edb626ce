"""Exact rational values of numerals and trees, with a limit on the size of every result."""

from __future__ import annotations

import math
from fractions import Fraction

from rlobj.answers.expressions import Tree, names
from rlobj.answers.lexer import Unreadable

_MAX_DIGITS = 4000
_MAX_SCALE = 4000


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


_MAX_BITS = 60_000
_MAX_FACTORIAL = 5_000


def rational(tree: Tree) -> Fraction | None:
    """Return the exact value of a tree, or None if it is not rational, not finite, or too large.

    Example:
        >>> rational(("^", Fraction(2), Fraction(-3)))
        Fraction(1, 8)
        >>> rational(("root", Fraction(2), Fraction(2))) is None
        True
    """
    if isinstance(tree, Fraction):
        return tree
    operation = _OPERATIONS.get(tree[0])
    if operation is None:
        return None
    values: list[Fraction] = []
    for part in tree[1:]:  # a comprehension would halve the depth that can be read
        value = rational(part)
        if value is None:
            return None
        values.append(value)
    result = operation(*values) if len(values) == operation.__code__.co_argcount else None
    return result if result is not None and _bits(result) <= _MAX_BITS else None


def linear(tree: Tree, name: str) -> tuple[Fraction, Tree] | None:
    """Return a and b if the tree is a * name + b with a rational a, and b is free of the name."""
    if name not in names(tree):
        return Fraction(0), tree
    parts = [linear(part, name) for part in tree[1:]] if tree[0] in _FIELD else []
    match tree[0], parts:
        case "name", _:
            return Fraction(1), Fraction(0)
        case "neg", [(a, b)]:
            return -a, ("neg", b)
        case ("+" | "-") as sign, [(a, b), (c, d)]:
            return (a + c if sign == "+" else a - c), (sign, b, d)
        case "*", [(0, k), (a, b)] | [(a, b), (0, k)] if (factor := rational(k)) is not None:
            return a * factor, ("*", b, k)
        case "/", [(a, b), (0, k)] if divisor := rational(k):
            return a / divisor, ("/", b, k)
    return None


_FIELD = frozenset(("neg", "+", "-", "*", "/"))


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def _divide(above: Fraction, below: Fraction) -> Fraction | None:
    return above / below if below else None


def _power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = _root(base, Fraction(exponent.denominator))
        return None if root is None else _power(root, Fraction(exponent.numerator))
    count = exponent.numerator
    if (abs(count) * _bits(base) > _MAX_BITS and abs(base) != 1) or (base == 0 and count <= 0):
        return None
    return base**count


def _root(value: Fraction, degree: Fraction) -> Fraction | None:
    if degree.denominator != 1 or not 2 <= degree.numerator <= 64 or value < 0:
        return None
    above = _integer_root(value.numerator, degree.numerator)
    below = _integer_root(value.denominator, degree.numerator)
    return None if above is None or below is None else Fraction(above, below)


def _integer_root(value: int, degree: int) -> int | None:
    low = high = math.isqrt(value)
    if degree > 2:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
    return low if low**degree == value else None


def _factorial(value: Fraction) -> Fraction | None:
    if value.denominator != 1 or not 0 <= value.numerator <= _MAX_FACTORIAL:
        return None
    return Fraction(math.factorial(value.numerator))


def _binomial(above: Fraction, below: Fraction) -> Fraction | None:
    whole = _are_integers(above, below)
    if not whole or below < 0 or not 0 <= above <= _MAX_FACTORIAL:
        return None
    return Fraction(math.comb(above.numerator, below.numerator))


def _are_integers(*values: Fraction) -> bool:
    return all(value.denominator == 1 for value in values)


_OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: abs(a),
    "floor": lambda a: Fraction(math.floor(a)),
    "ceil": lambda a: Fraction(math.ceil(a)),
    "/": _divide,
    "^": _power,
    "root": _root,
    "!": _factorial,
    "gcd": lambda a, b: Fraction(math.gcd(int(a), int(b))) if _are_integers(a, b) else None,
    "mod": lambda a, b: a % b if b else None,
    "lcm": lambda a, b: Fraction(math.lcm(int(a), int(b))) if _are_integers(a, b) else None,
    "binom": _binomial,
}
