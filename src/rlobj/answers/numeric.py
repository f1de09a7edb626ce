"""Compare two expression trees by evaluation at many points, with many digits.

Two expressions are equal if they agree at random points to 45 digits more than their own numbers
have, and different if they differ at one point. Variables are positive at the first points, and
have random signs at the others. A signed point is skipped if a branch cut makes a value complex.
Expressions with floors, factorials or (-1)^n are evaluated at integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath

from rlobj.answers.comparison import NEAR, TOLERANCE, ExactComparer
from rlobj.answers.expressions import Tree, names
from rlobj.answers.structures import Scalar

_DIGITS = 60
_MAX_DIGITS = 2500
_AGREE = 45
_POINTS = 6
_MAX_MAGNITUDE = 2**24
"""Limit on the bits of a value before and after the binary point."""
_MAX_TERMS = 2000
_DISCRETE = frozenset(("floor", "ceil", "!", "binom", "sum", "prod"))


class _TooLarge(Exception):
    """A value is too large to evaluate."""


class NumericComparer(ExactComparer):
    """Compares by evaluation what `ExactComparer` cannot decide.

    Args:
        fallback: compares values that have no tree; default: they stay undecided.
    """

    def __init__(self, fallback: Callable[[Scalar, Scalar], bool | None] | None = None) -> None:
        self.reason = "numeric"
        self._fallback = fallback or (lambda answer, gold: None)

    def equal(self, answer: Scalar, gold: Scalar) -> bool | None:
        """Return whether both have the same value at all points."""
        known = super().equal(answer, gold)
        if known is not None:
            return known
        if answer.tree is None or gold.tree is None:
            return self._fallback(answer, gold)
        return self._same(answer.tree, gold.tree, gold.decimal)

    def near(self, rounded: Scalar, exact: Scalar) -> bool | None:
        """Return whether two numbers differ by at most 1%."""
        known = super().near(rounded, exact)
        if known is not None or rounded.tree is None or exact.tree is None:
            return known
        for values in _evaluated(rounded.tree, exact.tree):
            if values is None or abs(values[0] - values[1]) > float(NEAR) * abs(values[1]):
                return False
        return True

    def proportional(self, answer: Tree, gold: Tree, positive: bool) -> bool | None:
        """Return whether the ratio of both is the same number at all points."""
        first = None
        for values in _evaluated(answer, gold):
            if values is None:
                continue
            a, g = values
            if a == 0 or g == 0:
                if a != g:
                    return False
                continue
            ratio = a / g
            if first is None:
                first = ratio
                if positive and not (mpmath.im(ratio) == 0 and mpmath.re(ratio) > 0):
                    return False
            elif not _close(ratio, first):
                return False
        return first is not None

    def _same(self, answer: Tree, gold: Tree, decimal: bool) -> bool | None:
        seen = 0
        for values in _evaluated(answer, gold):
            if values is None:
                continue
            a, g = values
            if decimal and not names(answer) | names(gold):
                return bool(abs(a - g) <= mpmath.mpf(1) / TOLERANCE.denominator * abs(g))
            if not _close(a, g):
                return False
            seen += 1
        if seen:
            return True
        return None if _first_value(gold) is None else False


def _close(a: Any, b: Any) -> bool:
    agree = mpmath.mpf(10) ** -(mpmath.mp.dps - _DIGITS + _AGREE)
    return bool(abs(a - b) <= agree * max(abs(a), abs(b)))


def _first_value(tree: Tree) -> Any:
    for values in _evaluated(tree, tree):
        if values is not None:
            return values[0]
    return None


def _evaluated(answer: Tree, gold: Tree) -> Iterator[tuple[Any, Any] | None]:
    """Yield both values at each point; None if one of them has no value there."""
    variables = sorted(names(answer) | names(gold))
    digits = _DIGITS + min(_MAX_DIGITS, _digit_count(answer) + _digit_count(gold))
    with mpmath.workdps(digits):
        for point, signed in _points(variables, _is_discrete(answer) or _is_discrete(gold)):
            a, g = _value_at(answer, point), _value_at(gold, point)
            if a is None or g is None or (signed and (mpmath.im(a) != 0 or mpmath.im(g) != 0)):
                yield None
            else:
                yield _without_rounding_noise(a, g, answer, gold, point)


def _without_rounding_noise(
    a: Any, g: Any, answer: Tree, gold: Tree, point: dict[str, Any]
) -> tuple[Any, Any]:
    """Replace rounding noise by zero: noise shrinks with more digits, a small value does not."""
    small = mpmath.mpf(10) ** -30
    if abs(a) >= small and abs(g) >= small:
        return a, g
    digits = mpmath.mp.dps
    with mpmath.workdps(2 * digits):
        finer = [_value_at(tree, point) for tree in (answer, gold)]
    noise = mpmath.mpf(10) ** (-digits - 10)
    values = [
        mpmath.mpf(0) if fine is not None and abs(fine) < noise and abs(v) < small else v
        for v, fine in zip((a, g), finer, strict=True)
    ]
    return values[0], values[1]


def _points(variables: list[str], discrete: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield values of the variables, and whether some may be negative.

    In discrete expressions, letters that usually count are integers (some of them powers).
    Capitals, Greek letters and letters with subscripts are physical quantities and positive.
    """
    if not variables:
        yield {}, False
        return
    if discrete:
        for count in _COUNTS:
            generator = random.Random(count)
            yield {name: _integer_value(name, count, generator) for name in variables}, False
        return
    for signed in (False, True):
        if signed and not all(len(name) == 1 and name.islower() for name in variables):
            return
        for count in range(_POINTS):
            generator = random.Random(f"{count} {signed}")
            point = {name: _real_value(count, generator) for name in variables}
            if signed:
                point = {n: -v if generator.random() < 0.7 else v for n, v in point.items()}
            yield point, signed


_COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 25, 27, 30, 32, 64, 100)


def _integer_value(name: str, count: int, generator: random.Random) -> Any:
    """An integer near `count`; letters that usually stand for real numbers get a fraction."""
    offset = generator.randrange(0, 5) if name not in "nN" else 0
    value = mpmath.mpf(count + offset)
    return value + mpmath.mpf(generator.randrange(1, 9)) / 10 if name in "xyztuvwrs" else value


def _real_value(count: int, generator: random.Random) -> Any:
    value = mpmath.mpf(generator.randrange(10**5, 3 * 10**5)) / 10**5 + mpmath.mpf(count) / 7
    return value if count % 2 else 1 / value


def _value_at(tree: Tree, point: dict[str, Any]) -> Any:
    try:
        value = _evaluate(tree, point)
    except (ZeroDivisionError, ValueError, OverflowError, _TooLarge, TypeError):
        return None
    return value if mpmath.isfinite(value) else None


def _evaluate(tree: Tree, point: dict[str, Any]) -> Any:
    if isinstance(tree, Fraction):
        return mpmath.mpf(tree.numerator) / tree.denominator
    kind = tree[0]
    if kind == "name":
        return point[tree[1]]
    if kind == "const":
        return _CONSTANTS[tree[1]]()
    if kind in ("sum", "prod"):
        return _series(tree, point)
    if kind == "apply":
        return _applied(tree[1], [_evaluate(part, point) for part in tree[2:]])
    function = _FUNCTIONS.get(kind)
    if function is None:
        raise ValueError(kind)
    value = function(*(_evaluate(part, point) for part in tree[1:]))
    if value and abs(mpmath.mag(value)) > _MAX_MAGNITUDE:
        raise _TooLarge
    return value


def _series(tree: Tree, point: dict[str, Any]) -> Any:
    kind, (_, variable), *bounds, term = tree
    low, high = (_evaluate(bound, point) for bound in bounds)
    if not (mpmath.isint(low) and mpmath.isint(high)):
        raise ValueError("bounds that are no integers")
    if high - low > _MAX_TERMS or _contains_series(term):
        raise _TooLarge
    values = [
        _evaluate(term, {**point, variable: mpmath.mpf(count)})
        for count in range(int(low), int(high) + 1)
    ]
    return mpmath.fsum(values) if kind == "sum" else mpmath.fprod(values)


def _contains_series(tree: Tree) -> bool:
    if not isinstance(tree, tuple):
        return False
    return tree[0] in ("sum", "prod") or any(map(_contains_series, tree[1:]))


def _applied(name: str, arguments: list[Any]) -> Any:
    """Evaluate an unknown function as a smooth function that depends on its name."""
    generator = random.Random(name)
    value = mpmath.mpf(generator.randrange(1, 1000)) / 97
    for argument in arguments:
        value += mpmath.sin(argument * generator.randrange(1, 1000) / 331 + 1)
    return value


def _power(base: Any, exponent: Any) -> Any:
    size = abs(exponent) * (abs(mpmath.mag(base)) + 1 if base else 1)
    if size > _MAX_MAGNITUDE:
        raise _TooLarge
    return mpmath.power(base, exponent)


def _root(value: Any, degree: Any) -> Any:
    odd = mpmath.im(degree) == 0 and mpmath.isint(degree) and int(degree) % 2
    if odd and mpmath.im(value) == 0 and mpmath.re(value) < 0:
        return -mpmath.power(-value, 1 / degree)
    return mpmath.sqrt(value) if degree == 2 else mpmath.power(value, 1 / degree)


def _periodic(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        if (value and mpmath.mag(value) > 2000) or abs(mpmath.im(value)) > 10**6:
            raise _TooLarge
        return function(value)

    return bounded


def _bounded(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    def bounded(*values: Any) -> Any:
        if any(abs(value) > most for value in values):
            raise _TooLarge
        return function(*values)

    return bounded


_gamma = _bounded(mpmath.gamma, 10**5)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    "∞": lambda: mpmath.inf,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "neg": lambda a: -a,
    "°": lambda a: a * mpmath.pi / 180,
    "^": _power,
    "root": _root,
    "sqrt": lambda a: mpmath.sqrt(a),
    "abs": abs,
    "floor": mpmath.floor,
    "ceil": mpmath.ceil,
    "!": lambda a: _gamma(a + 1),
    "Gamma": _gamma,
    "binom": _bounded(mpmath.binomial, 10**5),
    "ln": mpmath.log,
    "lg": mpmath.log10,
    "exp": lambda a: _power(mpmath.e, a),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _FUNCTIONS[_name] = _periodic(getattr(mpmath, _name))
for _name in ("sinh", "cosh", "tanh", "coth"):
    _FUNCTIONS[_name] = _bounded(getattr(mpmath, _name), 10**6)
for _name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
    _FUNCTIONS[f"arc{_name}"] = _periodic(getattr(mpmath, f"a{_name}"))


def _is_discrete(tree: Tree) -> bool:
    """Return whether a tree has a floor, factorial, binomial, sum or power (-1)^n."""
    if not isinstance(tree, tuple):
        return False
    alternates = tree[0] == "^" and tree[1] == ("neg", Fraction(1)) and names(tree[2])
    return tree[0] in _DISCRETE or bool(alternates) or any(map(_is_discrete, tree[1:]))


def _digit_count(tree: Tree) -> int:
    """Return the total number of digits of the numbers in a tree."""
    if isinstance(tree, Fraction):
        return (tree.numerator.bit_length() + tree.denominator.bit_length()) // 3
    return sum(map(_digit_count, tree[1:])) if isinstance(tree, tuple) else 0
