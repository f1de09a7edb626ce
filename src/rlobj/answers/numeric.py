"""The oracle that evaluates: both trees at many points, to far more digits than either states.

Two expressions that agree to 40 digits more than their own texts hold, at random points, are the
same function for every purpose of grading; two that differ at one point are not. Names are drawn
as positive numbers, then with signs; where a branch cut makes a value complex the signed points
are left out. Expressions with floors, factorials or (-1)^n are compared at integers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import mpmath

from rlobj.answers.comparison import NEAR, TOLERANCE, Exact
from rlobj.answers.expressions import Tree, names
from rlobj.answers.structures import Scalar

__all__ = ["Numeric"]

_DIGITS = 60
_MAX_DIGITS = 2500
_AGREE = 45
_POINTS = 6
_MAX_MAGNITUDE = 2**24
"""Bits before or behind the binary point that any value may have."""
_MAX_TERMS = 2000
_DISCRETE = frozenset(("floor", "ceil", "!", "binom", "sum", "prod"))


class _TooLarge(Exception):
    """A value beyond all bounds."""


class Numeric(Exact):
    """Decides what `Exact` cannot, by evaluation; None where neither side can be evaluated."""

    def __init__(self, beyond: Callable[[Scalar, Scalar], bool | None] | None = None) -> None:
        self._beyond = beyond or (lambda answer, gold: None)

    def equal(self, answer: Scalar, gold: Scalar) -> bool | None:
        """Whether both have the same value at all points."""
        known = super().equal(answer, gold)
        if known is not None:
            return known
        if answer.tree is None or gold.tree is None:
            return self._beyond(answer, gold)
        return self._same(answer.tree, gold.tree, gold.decimal)

    def near(self, rounded: Scalar, exact: Scalar) -> bool | None:
        """Whether two numbers differ by 1% at most."""
        known = super().near(rounded, exact)
        if known is not None or rounded.tree is None or exact.tree is None:
            return known
        for values in _evaluated(rounded.tree, exact.tree):
            if values is None or abs(values[0] - values[1]) > float(NEAR) * abs(values[1]):
                return False
        return True

    def proportional(self, answer: Tree, gold: Tree, positive: bool) -> bool | None:
        """Whether the ratio of both is the same number at all points."""
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
    """Both values at each point; None where one of them has none."""
    variables = sorted(names(answer) | names(gold))
    digits = _DIGITS + min(_MAX_DIGITS, _width(answer) + _width(gold))
    with mpmath.workdps(digits):
        for point, signed in _points(variables, _steps(answer) or _steps(gold)):
            a, g = _value_at(answer, point), _value_at(gold, point)
            if a is None or g is None or (signed and (mpmath.im(a) != 0 or mpmath.im(g) != 0)):
                yield None
            else:
                yield _flushed(a, g, answer, gold, point)


def _flushed(a: Any, g: Any, answer: Tree, gold: Tree, point: dict[str, Any]) -> tuple[Any, Any]:
    """What cancels to rounding noise is zero: it shrinks with more digits, a tiny value stays."""
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


def _points(variables: list[str], steps: bool) -> Iterator[tuple[dict[str, Any], bool]]:
    """Values for the names, and whether some are negative.

    Where the expressions have steps, letters that usually count are integers, powers among them.
    Capitals, Greek letters and letters with subscripts are physical quantities, above zero.
    """
    if not variables:
        yield {}, False
        return
    if steps:
        for count in _COUNTS:
            chooser = random.Random(count)
            yield {name: _count(name, count, chooser) for name in variables}, False
        return
    for signed in (False, True):
        if signed and not all(len(name) == 1 and name.islower() for name in variables):
            return
        for count in range(_POINTS):
            chooser = random.Random(f"{count} {signed}")
            point = {name: _real(count, chooser) for name in variables}
            if signed:
                point = {n: -v if chooser.random() < 0.7 else v for n, v in point.items()}
            yield point, signed


_COUNTS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 25, 27, 30, 32, 64, 100)


def _count(name: str, count: int, chooser: random.Random) -> Any:
    """The first name in the alphabet takes the count, or a real number if its letter is real."""
    offset = chooser.randrange(0, 5) if name not in "nN" else 0
    value = mpmath.mpf(count + offset)
    return value + mpmath.mpf(chooser.randrange(1, 9)) / 10 if name in "xyztuvwrs" else value


def _real(count: int, chooser: random.Random) -> Any:
    value = mpmath.mpf(chooser.randrange(10**5, 3 * 10**5)) / 10**5 + mpmath.mpf(count) / 7
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
    """An unknown function: some smooth function that its name picks."""
    chooser = random.Random(name)
    value = mpmath.mpf(chooser.randrange(1, 1000)) / 97
    for argument in arguments:
        value += mpmath.sin(argument * chooser.randrange(1, 1000) / 331 + 1)
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


def _exp(value: Any) -> Any:
    return _power(mpmath.e, value)


def _periodic(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        if (value and mpmath.mag(value) > 2000) or abs(mpmath.im(value)) > 10**6:
            raise _TooLarge
        return function(value)

    return bounded


def _hyperbolic(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        if abs(value) > 10**6:
            raise _TooLarge
        return function(value)

    return bounded


def _gamma(value: Any) -> Any:
    if abs(value) > 10**5:
        raise _TooLarge
    return mpmath.gamma(value)


def _binomial(above: Any, below: Any) -> Any:
    if abs(above) > 10**5 or abs(below) > 10**5:
        raise _TooLarge
    return mpmath.binomial(above, below)


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
    "binom": _binomial,
    "ln": mpmath.log,
    "lg": mpmath.log10,
    "exp": _exp,
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}
for _name in ("sin", "cos", "tan", "cot", "sec", "csc"):
    _FUNCTIONS[_name] = _periodic(getattr(mpmath, _name))
for _name in ("sinh", "cosh", "tanh", "coth"):
    _FUNCTIONS[_name] = _hyperbolic(getattr(mpmath, _name))
for _name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh"):
    _FUNCTIONS[f"arc{_name}"] = _periodic(getattr(mpmath, f"a{_name}"))


def _steps(tree: Tree) -> bool:
    """Whether a floor, a factorial, a binomial or a power (-1)^n stands in a tree."""
    if not isinstance(tree, tuple):
        return False
    alternates = tree[0] == "^" and tree[1] == ("neg", Fraction(1)) and names(tree[2])
    return tree[0] in _DISCRETE or bool(alternates) or any(map(_steps, tree[1:]))


def _width(tree: Tree) -> int:
    """How many digits the numbers of a tree have in all."""
    if isinstance(tree, Fraction):
        return (tree.numerator.bit_length() + tree.denominator.bit_length()) // 3
    return sum(map(_width, tree[1:])) if isinstance(tree, tuple) else 0
