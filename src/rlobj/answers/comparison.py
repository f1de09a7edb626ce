"""Compare the structure of an answer with the structure of the gold answer, part by part.

Every function returns True, False, or None if the comparer of values cannot decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from rlobj.answers.expressions import Tree, names
from rlobj.answers.structures import (
    INFINITY,
    Based,
    Chain,
    Interval,
    Items,
    Matrix,
    Named,
    Relation,
    Rounded,
    Scalar,
    Structure,
    Tuple,
    Union,
    Words,
)
from rlobj.answers.words import normalize_words

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
        if _infinite(answer) or _infinite(gold) or names(answer.tree) - names(gold.tree):
            return False
        return None

    def near(self, rounded: Scalar, exact: Scalar) -> Truth:
        """Whether two numbers differ by at most 1%: decides rational values."""
        if rounded.value is None or exact.value is None:
            return None
        return abs(rounded.value - exact.value) <= NEAR * abs(exact.value)

    def proportional(self, answer: Tree, gold: Tree, positive: bool) -> Truth:
        """Whether two trees differ by a constant factor, with `positive` a positive one."""
        return True if answer == gold else None


def compare(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Return whether two structures are the same answer; different kinds never are."""
    if isinstance(answer, Relation) or isinstance(gold, Relation):
        return _relations(answer, gold, comparer)
    if isinstance(gold, (Chain, Rounded)):
        return compare(answer, _first(gold), comparer)
    if isinstance(answer, Chain):
        return _all(compare(each, _value(gold), comparer) for each in answer.values)
    if isinstance(answer, Rounded):
        return _rounded(answer, _value(gold), comparer)
    if isinstance(answer, Named) or isinstance(gold, Named):
        return _named(answer, gold, comparer)
    if isinstance(answer, Words) or isinstance(gold, Words):
        return _text(answer) == _text(gold) != ""
    if isinstance(answer, Items) or isinstance(gold, Items):
        return _lists(answer, gold, comparer)
    if isinstance(answer, (Interval, Union)) or isinstance(gold, (Interval, Union)):
        return _regions(answer, gold, comparer)
    if isinstance(answer, Scalar) and isinstance(gold, Scalar):
        if None not in (answer.unit, gold.unit) and answer.unit != gold.unit:
            return False
        return comparer.equal(answer, gold)
    if isinstance(answer, Based) or isinstance(gold, Based):
        return answer == gold
    if getattr(answer, "brackets", "()") != getattr(gold, "brackets", "()"):
        return False
    given, expected = _rows(answer, gold), _rows(gold, answer)
    if given is None or expected is None or list(map(len, given)) != list(map(len, expected)):
        return False
    return _all(
        compare(a, g, comparer)
        for row, gold_row in zip(given, expected, strict=True)
        for a, g in zip(row, gold_row, strict=True)
    )


def _first(structure: Chain | Rounded) -> Structure:
    if isinstance(structure, Chain):
        return structure.values[0]
    return structure.about if structure.value is None else structure.value


def _rounded(answer: Rounded, gold: Structure, comparer: ExactComparer) -> Truth:
    """14/3 ≈ 4.67 equals 14/3 if both are close; ≈ 4.67 alone can equal a decimal only."""
    if answer.value is None:
        decimal = isinstance(gold, Scalar) and gold.decimal
        return compare(answer.about, gold, comparer) if decimal else False
    value = answer.value.values[0] if isinstance(answer.value, Chain) else answer.value
    if not isinstance(value, Scalar) or not isinstance(answer.about, Scalar):
        return False
    return _all((compare(answer.value, gold, comparer), comparer.near(answer.about, value)))


def _rows(structure: Structure, other: Structure) -> Sequence[Sequence[Structure]] | None:
    """Rows of a matrix or tuple; a column counts as a row if the other one is a tuple."""
    if isinstance(structure, Tuple):
        return [structure.items]
    if isinstance(structure, Matrix):
        if isinstance(other, Tuple) and all(len(row) == 1 for row in structure.rows):
            return [[row[0] for row in structure.rows]]
        return structure.rows
    return None


def _text(structure: Structure) -> str:
    if isinstance(structure, Words):
        return structure.text
    return normalize_words(structure.latex) if isinstance(structure, Scalar) else ""


def _value(structure: Structure) -> Structure:
    return structure.value if isinstance(structure, Named) else structure


def _named(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    if isinstance(answer, Named) and isinstance(gold, Named) and answer.name != gold.name:
        return False
    variable = getattr(answer, "variable", None) or getattr(gold, "variable", None)
    for each in (answer, gold):
        if isinstance(each, Named) and variable not in (None, each.name):
            return False
    return compare(_value(answer), _value(gold), comparer)


def _lists(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    given, expected = _flat(answer), _flat(gold)
    for one, other in ((answer, gold), (gold, answer)):
        if isinstance(one, Items) and one.braces and not isinstance(other, Items):
            return False  # {5} is not a number
    if isinstance(gold, Tuple) and isinstance(answer, Items) and len(given) == len(gold.items):
        labels = [each.name for each in given if isinstance(each, Named)]
        if len(set(labels)) == len(gold.items):  # x = 1, y = 2 for (1, 2)
            return compare(Tuple(tuple(map(_value, given)), "()"), gold, comparer)
        return False
    return _matched(given, expected, comparer)


def _flat(structure: Structure, inner: bool = False) -> list[Structure]:
    r"""Elements of a list; \pm inside a list or tuple gives two, and each keeps the name."""
    if isinstance(structure, Named):
        return [Named(structure.name, each) for each in _flat(structure.value, inner)]
    if isinstance(structure, Items) and not (inner and structure.braces):
        return [leaf for item in structure.items for leaf in _flat(item, inner=True)]
    if isinstance(structure, Tuple):
        choices: list[tuple[Structure, ...]] = [()]
        for item in structure.items:
            options = _flat(item, inner=True)
            choices = [(*chosen, option) for chosen in choices for option in options]
            if len(choices) > _MAX_CHOICES:
                return [structure]
        return [Tuple(chosen, structure.brackets) for chosen in choices]
    return [structure]


_MAX_CHOICES = 256


def _matched(given: list[Structure], expected: list[Structure], comparer: ExactComparer) -> Truth:
    """Return whether two lists are equal as multisets."""
    if len(given) != len(expected):
        return False
    left = list(given)
    undecided = False
    for gold in expected:
        truths = []
        for index, answer in enumerate(left):
            truth = compare(answer, gold, comparer)
            if truth:
                del left[index]
                break
            truths.append(truth)
        else:
            if None not in truths:
                return False
            undecided = True
    return None if undecided else True


def _regions(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    variables = {getattr(each, "variable", None) for each in (answer, gold)} - {None}
    if len(variables) > 1:
        return False
    given, expected = _pieces(answer), _pieces(gold)
    if len(given) != len(expected):
        return False
    if len(given) > 1:
        return _matched(given, expected, comparer)
    [a], [g] = given, expected
    if not (isinstance(a, Interval) and isinstance(g, Interval)):
        return (
            False if isinstance(a, Interval) or isinstance(g, Interval) else compare(a, g, comparer)
        )
    if a.closed != g.closed:
        return False
    return _all((compare(a.low, g.low, comparer), compare(a.high, g.high, comparer)))


def _pieces(structure: Structure) -> list[Structure]:
    if isinstance(structure, Union):
        return list(structure.parts)
    if isinstance(structure, Tuple) and len(structure.items) == 2 and structure.brackets == "()":
        return [Interval(*structure.items, (False, False))]
    return [structure]


def _relations(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Equations and inequalities are equal if their differences have a constant ratio."""
    if isinstance(gold, Named) and not (
        isinstance(gold.value, Scalar) and gold.value.tree is not None and names(gold.value.tree)
    ):
        return False  # the gold x = 5 needs a solved equation
    given, expected = _equation(answer), _equation(gold)
    if given is None or expected is None or given.symbol != expected.symbol:
        return False
    if not names(given.left) | names(given.right):
        return False
    ordered = given.symbol in ("<", "<=")
    return comparer.proportional(
        ("-", given.left, given.right), ("-", expected.left, expected.right), ordered
    )


def _equation(structure: Structure) -> Relation | None:
    if isinstance(structure, Relation):
        return structure
    if not isinstance(structure, Named) or not isinstance(structure.value, Scalar):
        return None
    name, value = structure.tree or ("name", structure.name), structure.value.tree
    return None if value is None else Relation("=", name, value)


def _infinite(scalar: Scalar) -> bool:
    return scalar.tree in (INFINITY, ("neg", INFINITY))


def _all(truths: Iterable[Truth]) -> Truth:
    undecided = False
    for truth in truths:
        if truth is False:
            return False
        undecided = undecided or truth is None
    return None if undecided else True
