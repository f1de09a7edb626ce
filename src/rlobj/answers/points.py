"""Points at which two expressions are compared.

They depend on both expressions and on a key, and are the same in every process. Whoever changes an
answer changes its points, so that a text that equals another one at its points alone is found by
chance only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

from rlobj.answers.expressions import Tree, names, parts_of

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
