"""Compare two expression trees by evaluation at many points, with many digits.

Two expressions are equal if they agree at random points to 75 digits more than their own numbers
have, and different if they differ at one point. Variables are positive at the first points, and
have random signs at the others; their sizes are between 10^-6 and 10^6. A signed point is skipped
if a branch cut makes a value complex. If the gold has floors, factorials or (-1)^n, letters that
usually count are integers, and so are the bounds of sums in the answer.

Digits can get lost: 1 + 10^-99 is 1 to 60 digits. If that happens, the point is evaluated again
with more digits, and left out if no number of digits up to 2500 is enough.

They depend on both expressions and on a key, and are the same in every process. Whoever changes an
answer changes its points, so that a text that equals another one at its points alone is found by
chance only.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import mpmath

from rlobj.answers.comparison import NEAR, TOLERANCE, ExactComparer, last_digit
from rlobj.answers.expressions import Tree, names, parts_of
from rlobj.answers.structures import Scalar, is_infinite

_KEY = "2f61c0be4e1b7d09"  # part of `verifier_version`, as all of this file
_POINTS = 6
_DISCRETE = frozenset(("floor", "ceil", "mod", "!", "binom", "sum", "prod"))
_REAL = "xyztuvwrs"
"""Letters that usually stand for real numbers."""
_STEPS = frozenset(("floor", "ceil", "mod", "max", "min", "abs"))


def generator(*trees: Tree) -> random.Random:
    """Return the random generator for the comparison of these trees."""
    return random.Random(f"{_KEY} {trees}")


def points(
    variables: Sequence[str], answer: Tree, gold: Tree
) -> Iterator[tuple[dict[str, Fraction], bool]]:
    """Yield values of the variables, and whether some may be negative.

    If the gold has floors, factorials or (-1)^n, letters that usually count are integers, and so
    are the bounds of sums in the answer. Capitals, Greek letters and letters with subscripts
    are physical quantities and positive.
    """
    if not variables:
        yield {}, False
        return
    draw = generator(answer, gold)
    signs = all(len(name) == 1 and name.islower() for name in variables)
    whole = frozenset(variables) if _is_discrete(gold) else _in_bounds(answer)
    if _has_steps(answer) or _has_steps(gold):  # they may differ at 0 and at integers only
        counted = {name for name in whole if name not in _REAL}
        for size in (0, 1, 2, 9):
            low = -size if signs else min(size, 1)
            ranges = {n: (1, size + 1) if n in counted else (low, size) for n in variables}
            yield {name: Fraction(draw.randint(*ends)) for name, ends in ranges.items()}, True
    if whole:
        for low, high in _COUNTS:
            count = draw.randint(low, high)
            yield (
                {
                    name: _count(name, count, draw) if name in whole else _real(draw, 0)
                    for name in variables
                },
                False,
            )
        return
    for signed in (False, True) if signs else (False,):
        for index in range(_POINTS):
            size = {2: 1, 5: -1}.get(index, 0)
            point = {name: _real(draw, size) for name in variables}
            if signed:
                point = {
                    n: -v if index in (1, 2, 5) or draw.random() < 0.7 else v
                    for n, v in point.items()
                }
            yield point, signed


_COUNTS = (
    *[(1, 6)] * 3,
    *[(7, 40)] * 4,
    *[(n, n) for n in (3, 4, 7, 8, 15, 16, 24, 25, 31, 32)],
    (41, 130),
    (300, 400),
    (1000, 5000),
    (10**7, 10**8),
)
"""Ranges of integers; also squares, powers of two and the numbers before them, where floors of
roots and logarithms change."""


def _count(name: str, count: int, draw: random.Random) -> Fraction:
    """An integer near `count`; letters that usually stand for real numbers get a fraction."""
    offset = draw.randrange(0, 5) if name not in "nN" else 0
    value = Fraction(count + offset)
    return value + Fraction(draw.randrange(1, 9), 10) if name in _REAL else value


def _real(draw: random.Random, size: int) -> Fraction:
    """A number between 1/3 and 10/3; with size 1 times 10^5, with size -1 divided by it."""
    value = Fraction(draw.randrange(10**6, 10**7), 10**6)
    return value * Fraction(10) ** (size * 5) if size else value / 3


def _in_bounds(tree: Tree) -> frozenset[str]:
    """Return the names in the bounds of sums and products."""
    series = (part for part in parts_of(tree) if part[0] in ("sum", "prod"))
    return frozenset(name for part in series for bound in part[2:4] for name in names(bound))


def _is_discrete(tree: Tree) -> bool:
    """Return whether a tree has a floor, factorial, binomial, sum or power (-1)^n."""
    return any(
        part[0] in _DISCRETE
        or (part[0] == "^" and part[1] == ("neg", Fraction(1)) and names(part[2]))
        for part in parts_of(tree)
    )


def _has_steps(tree: Tree) -> bool:
    """Return whether a tree has a floor, a maximum, an absolute value or a name as exponent."""
    return any(p[0] in _STEPS or (p[0] == "^" and names(p[2])) for p in parts_of(tree))


_DIGITS = 110
_MAX_DIGITS = 2500
_AGREE = 75
_ATTEMPTS = 4
"""How often a point is evaluated with more digits while digits get lost."""
_MAX_MAGNITUDE = 2**24
"""Limit on the bits of a value before and after the binary point."""
_MAX_TERMS = 2000


class NumericComparer(ExactComparer):
    """Compares by evaluation what `ExactComparer` cannot decide.

    Args:
        fallback: compares values that have no tree.

    Attributes:
        of_gold: a gold answer is compared with itself, and `equal` tells whether it has a value.
    """

    def __init__(self, fallback: Callable[[Scalar, Scalar], bool | None]) -> None:
        self.reason = "numeric"
        self.of_gold = False
        self._fallback = fallback

    def equal(self, answer: Scalar, gold: Scalar) -> bool | None:
        """Return whether both have the same value at all points."""
        exact = super().equal(answer, gold)
        if exact is not None and not (self.of_gold and gold.value is None):
            return exact
        if self.of_gold and gold.tree is not None:
            return is_infinite(gold) or any(_evaluated(gold.tree, gold.tree)) or None
        if answer.tree is None or gold.tree is None:
            return self._fallback(answer, gold)
        return self._same(answer.tree, gold.tree, gold.decimal)

    def order(self, one: Scalar, other: Scalar) -> int | None:
        """Whether a real number is below, equal to or above another."""
        exact = super().order(one, other)
        if exact is not None or one.tree is None or other.tree is None:
            return exact
        for values in _evaluated(one.tree, other.tree):
            if values is None or any(mpmath.im(value) != 0 for value in values):
                return None
            return 0 if _close(*values) else 1 if values[0] > values[1] else -1
        return None

    def near(self, rounded: Scalar, exact: Scalar) -> bool | None:
        """Return whether two numbers differ by at most 1%, or by one in the last decimal."""
        decided = super().near(rounded, exact)
        if decided is not None or rounded.tree is None or exact.tree is None:
            return decided
        for values in _evaluated(rounded.tree, exact.tree):
            if values is None:
                return False
            allowed = max(float(NEAR) * abs(values[1]), float(last_digit(rounded)))
            if abs(values[0] - values[1]) > allowed:
                return False
        return True

    def proportional(self, answer: Tree, gold: Tree, positive: bool) -> bool | None:
        """Return whether the ratio of both is the same number at all points."""
        first = None
        for a, g in filter(None, _evaluated(answer, gold)):
            if a == 0 or g == 0:
                if a != g:
                    return False
                continue
            ratio = a / g
            first = ratio if first is None else first
            sign = not positive or (mpmath.im(first) == 0 and mpmath.re(first) > 0)
            if not sign or not _close(ratio, first):
                return False
        return first is not None

    def _same(self, answer: Tree, gold: Tree, decimal: bool) -> bool | None:
        seen = 0
        for a, g in filter(None, _evaluated(answer, gold)):
            if decimal and not names(answer) | names(gold):
                return bool(abs(a - g) <= mpmath.mpf(1) / TOLERANCE.denominator * abs(g))
            if not _close(a, g):
                return False
            seen += 1
        return True if seen else None


def _close(a: Any, b: Any) -> bool:
    agree = mpmath.mpf(10) ** -(mpmath.mp.dps - _DIGITS + _AGREE)
    return bool(abs(a - b) <= agree * max(abs(a), abs(b)))


def _evaluated(answer: Tree, gold: Tree) -> Iterator[tuple[Any, Any] | None]:
    """Yield both values at each point; None if one has no value there, or digits get lost."""
    variables = sorted(names(answer) | names(gold))
    digits = _DIGITS + min(_MAX_DIGITS, _digit_count(answer) + _digit_count(gold))
    for point, signed in points(variables, answer, gold):
        more = lost = 0
        for _ in range(_ATTEMPTS):
            more += int(lost * 0.7)  # twice the lost bits, in digits
            with mpmath.workdps(digits + more):
                of_answer, of_gold = _Evaluator(point), _Evaluator(point)
                a, g = of_answer.value(answer), of_gold.value(gold)
                lost = max(of_answer.lost, of_gold.lost)
                if a is None or g is None or (signed and (mpmath.im(a) != 0 or mpmath.im(g) != 0)):
                    yield None
                elif not lost:
                    yield _without_rounding_noise(a, g, answer, gold, point)
                elif more + lost * 0.7 > _MAX_DIGITS:
                    yield None if variables or _close(a, g) else (a, g)
                else:
                    continue
            break
        else:
            yield None


def _without_rounding_noise(
    a: Any, g: Any, answer: Tree, gold: Tree, point: Mapping[str, Any]
) -> tuple[Any, Any]:
    """Replace rounding noise by zero: noise shrinks with more digits, a small value does not."""
    small = mpmath.mpf(10) ** -30
    if abs(a) >= small and abs(g) >= small:
        return a, g
    digits = mpmath.mp.dps
    with mpmath.workdps(2 * digits):
        finer = [_Evaluator(point).value(tree) for tree in (answer, gold)]
    values = [
        mpmath.mpf(0) if fine is not None and abs(fine) < abs(v) * small else v
        for v, fine in zip((a, g), finer, strict=True)
    ]
    return values[0], values[1]


class _Evaluator:
    """Evaluates trees at a point with the current number of digits.

    Attributes:
        lost: how many bits below a value a part of it was that did not change its digits; else 0.
    """

    def __init__(self, point: Mapping[str, Any]) -> None:
        self._point = point
        self._limit = (mpmath.mp.dps - _DIGITS + _AGREE) * 1.65  # half of the digits, in bits
        self.lost: float = 0.0

    def value(self, tree: Tree) -> Any:
        """Return the value, or None if there is none."""
        try:
            value = self.evaluate(tree)
        except (ZeroDivisionError, OverflowError, ValueError, TypeError):
            return None
        return value if mpmath.isfinite(value) else None

    def evaluate(self, tree: Tree) -> Any:
        """Return the value, or raise an error if there is none."""
        if isinstance(tree, Fraction):
            return mpmath.mpf(tree.numerator) / tree.denominator
        kind = tree[0]
        if kind == "name":
            return self.evaluate(self._point[tree[1]])
        if kind == "const":
            return _CONSTANTS[tree[1]]()
        if kind in ("sum", "prod"):
            return self._series(tree)
        if kind == "apply":
            return _applied(tree[1], [self.evaluate(part) for part in tree[2:]])
        function = _FUNCTIONS.get(kind)
        if function is None:
            raise ValueError(kind)
        parts = [self.evaluate(part) for part in tree[1:]]
        value = function(*parts)
        if value and mpmath.isfinite(value) and abs(mpmath.mag(value)) > _MAX_MAGNITUDE:
            raise OverflowError
        self.lost = max(self.lost, self._lost(kind, parts))
        return value

    def _lost(self, kind: str, parts: list[Any]) -> float:
        """Return the bits that a function hides of its arguments: 1 + tiny, cos tiny, tanh 99."""
        size = mpmath.mag(parts[0]) if parts and parts[0] else 0
        bits = 0.0
        if kind in ("+", "-") and parts[0] and parts[1]:
            bits = abs(size - mpmath.mag(parts[1]))
        elif kind in ("^", "root") and parts[1]:
            bits = mpmath.mag(parts[1]) * (1 if kind == "root" else -1)
        elif kind in _HYPERBOLIC:
            bits = max(-size, abs(mpmath.re(parts[0])) * 1.4)
        elif kind in _SMOOTH:
            bits = max(-size, size if kind.startswith("arc") else 0)
        return float(bits) if bits > self._limit else 0.0

    def _series(self, tree: Tree) -> Any:
        kind, (_, variable), *bounds, term = tree
        low, high = map(self.evaluate, bounds)
        if not (mpmath.isint(low) and mpmath.isint(high)):
            raise ValueError("bounds that are no integers")
        if high - low > _MAX_TERMS or any(part[0] in ("sum", "prod") for part in parts_of(term)):
            raise OverflowError
        values = []
        for count in range(int(low), int(high) + 1):
            inner = _Evaluator({**self._point, variable: Fraction(count)})
            values.append(inner.evaluate(term))
            self.lost = max(self.lost, inner.lost)
        return mpmath.fsum(values) if kind == "sum" else mpmath.fprod(values)


def _applied(name: str, arguments: list[Any]) -> Any:
    """Evaluate an unknown function as a smooth function that depends on its name."""
    draw = generator(name)
    value = mpmath.mpf(draw.randrange(1, 1000)) / 97
    for argument in arguments:
        value += mpmath.sin(argument * draw.randrange(1, 1000) / 331 + 1)
    return value


def _power(base: Any, exponent: Any) -> Any:
    size = abs(exponent) * (abs(mpmath.mag(base)) + 1 if base else 1)
    if size > _MAX_MAGNITUDE:
        raise OverflowError
    return mpmath.power(base, exponent)


def _root(value: Any, degree: Any) -> Any:
    odd = mpmath.im(degree) == 0 and mpmath.isint(degree) and int(degree) % 2
    if odd and mpmath.im(value) == 0 and mpmath.re(value) < 0:
        return -mpmath.power(-value, 1 / degree)
    return mpmath.sqrt(value) if degree == 2 else mpmath.power(value, 1 / degree)


def _snapped(value: Any) -> Any:
    """Return an integer for a value that differs from it only by rounding: log_2 8."""
    near = mpmath.nint(value)
    return near if abs(value - near) < mpmath.mpf(10) ** (20 - mpmath.mp.dps) else value


def _periodic(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def bounded(value: Any) -> Any:
        if (value and mpmath.mag(value) > 2000) or abs(mpmath.im(value)) > 10**6:
            raise OverflowError
        return function(value)

    return bounded


def _bounded(function: Callable[..., Any], most: int) -> Callable[..., Any]:
    def bounded(*values: Any) -> Any:
        if any(abs(value) > most for value in values):
            raise OverflowError
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
    "mod": lambda a, b: a - b * mpmath.floor(_snapped(a / b)),
    "°": lambda a: a * mpmath.pi / 180,
    "^": _power,
    "root": _root,
    "abs": abs,
    "floor": lambda a: mpmath.floor(_snapped(a)),
    "ceil": lambda a: mpmath.ceil(_snapped(a)),
    "!": lambda a: _gamma(a + 1),
    "Gamma": _gamma,
    "binom": _bounded(mpmath.binomial, 10**5),
    "ln": mpmath.log,
    "lg": mpmath.log10,
    "exp": lambda a: _power(mpmath.e, a),
    "max": lambda *values: max(values),
    "min": lambda *values: min(values),
}
_CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
_HYPERBOLIC = ("sinh", "cosh", "tanh", "coth")
_FUNCTIONS |= {name: _periodic(getattr(mpmath, name)) for name in _CIRCULAR}
_FUNCTIONS |= {name: _bounded(getattr(mpmath, name), 10**6) for name in _HYPERBOLIC}
for _name in (*_CIRCULAR, *_HYPERBOLIC[:-1]):
    _FUNCTIONS[f"arc{_name}"] = _periodic(getattr(mpmath, f"a{_name}"))
_SMOOTH = frozenset(name for name in _FUNCTIONS if name.endswith((*_CIRCULAR, *_HYPERBOLIC, "exp")))


def _digit_count(tree: Tree) -> int:
    """Return the total number of digits of the numbers in a tree."""
    if isinstance(tree, Fraction):
        return (tree.numerator.bit_length() + tree.denominator.bit_length()) // 3
    return sum(map(_digit_count, tree[1:])) if isinstance(tree, tuple) else 0
