"""Compare values exactly: equal expressions, and rational numbers."""

from __future__ import annotations

from fractions import Fraction

from rlobj.answers.expressions import Tree, names
from rlobj.answers.structures import Scalar, is_infinite

Truth = bool | None
TOLERANCE = Fraction(1, 10**9)
"""Relative difference allowed if the gold answer is written as a decimal or in e-notation."""
NEAR = Fraction(1, 100)
"""Relative difference allowed between a value and the rounded value written next to it."""


class ExactComparer:
    """Compares equal trees and rational values, without computer algebra.

    The base of comparers: each method returns None for what it cannot decide. `reason` says what
    decided: `exact`, `numeric` or `math-verify`.
    """

    reason = "exact"

    def equal(self, answer: Scalar, gold: Scalar) -> Truth:
        """Whether two values are equal: decides equal trees, rational and infinite values."""
        if answer.tree is None or gold.tree is None:
            return True if answer.latex == gold.latex else None
        if answer.tree == gold.tree:
            return True
        if gold.value is not None and answer.value is not None:
            if gold.decimal:
                return abs(answer.value - gold.value) <= TOLERANCE * abs(gold.value)
            return answer.value == gold.value
        new_names = names(answer.tree) - names(gold.tree)
        return False if new_names or is_infinite(answer) or is_infinite(gold) else None

    def order(self, one: Scalar, other: Scalar) -> int | None:
        """Whether a number is below (-1), equal to (0) or above (1) another: decides rationals."""
        if one.tree == other.tree:
            return 0
        if one.value is None or other.value is None:
            return None
        return (one.value > other.value) - (one.value < other.value)

    def near(self, rounded: Scalar, exact: Scalar) -> Truth:
        """Whether two rationals differ by at most 1%, or by one in the last decimal."""
        if rounded.value is None or exact.value is None:
            return None
        allowed = max(NEAR * abs(exact.value), last_digit(rounded))
        return abs(rounded.value - exact.value) <= allowed

    def proportional(self, answer: Tree, gold: Tree, positive: bool) -> Truth:
        """Whether two trees differ by a constant factor, with `positive` a positive one."""
        return True if answer == gold else None


def last_digit(rounded: Scalar) -> Fraction:
    """Return the value of the last decimal place of a number as it is written; else 0."""
    _, point, decimals = rounded.latex.strip().partition(".")
    return Fraction(1, 10 ** len(decimals)) if point and decimals.isdecimal() else Fraction(0)
