r"""The structures of answers; answers with different structures are usually not equal.

Compare values exactly: equal expressions, and rational numbers.

Compare sets of real numbers: intervals, finite sets, and what is made of them.

All ends of both sets are put in order. Two sets are equal if they agree on each end and on each
gap between two ends.

Notations of derivatives: y' and dy/dt; the lexer reads \dot y as y'.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from fractions import Fraction

from rlobj.answers.expressions import Tree, names, rational, renamed
from rlobj.answers.phrases import Unit

INFINITY = ("const", "∞")
MINUS_INFINITY = ("neg", INFINITY)


class Structure:
    """The structure of an answer."""


@dataclass(frozen=True)
class Scalar(Structure):
    """A value."""

    tree: Tree
    """None if the parser does not support it; then only the LaTeX is known."""
    value: Fraction | None
    """The exact value if it is rational, else None."""
    latex: str = ""
    unit: Unit | None = None
    decimal: bool = False
    """Whether the number has a decimal point or e-notation and may be rounded."""


@dataclass(frozen=True)
class Rounded(Structure):
    """A value with its rounded value, 14/3 ≈ 4.67; or a rounded value alone, ≈ 4.67."""

    value: Structure | None
    about: Structure


@dataclass(frozen=True)
class Based(Structure):
    """A numeral in a base other than ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Words(Structure):
    """A name, yes or no, a choice or prose; lower case, except single letters."""

    text: str


@dataclass(frozen=True)
class Tuple(Structure):
    """Ordered values. Two in () may be an open interval; `:` is a ratio or a time."""

    items: tuple[Structure, ...]
    brackets: str = "()"


@dataclass(frozen=True)
class Items(Structure):
    r"""Unordered values with repetitions: a list, both values of \pm, or a set in braces."""

    items: tuple[Structure, ...]
    braces: bool = False
    alternatives: bool = False
    """Whether "or" joins them."""


@dataclass(frozen=True)
class Interval(Structure):
    """All numbers between two bounds; `variable` is the name used in an inequality."""

    low: Structure
    high: Structure
    closed: tuple[bool, bool]
    variable: str | None = None


@dataclass(frozen=True)
class Region(Structure):
    """A union ∪, an intersection ∩ or a difference ∖ of intervals, finite sets and regions.

    The operator `or` is a union of parts that do not overlap; parts that do are alternatives.
    """

    operator: str
    parts: tuple[Structure, ...]
    variable: str | None = None


@dataclass(frozen=True)
class Relation(Structure):
    """An equation or an inequality that is not solved for a name."""

    symbol: str
    left: Tree
    right: Tree


@dataclass(frozen=True)
class Chain(Structure):
    """Values with equals signs between them: 2^{10} = 1024."""

    values: tuple[Structure, ...]


@dataclass(frozen=True)
class Named(Structure):
    """A value with its name: x = 5, m + n = 33, f(x) = 2x, x in [0, 1]."""

    name: str
    value: Structure
    tree: Tree = None
    """The left side as an expression, or None."""
    compound: bool = False
    """Whether the left side is more than a name: as a gold answer, this is an equation."""


@dataclass(frozen=True)
class Matrix(Structure):
    """Rows of a matrix."""

    rows: tuple[tuple[Structure, ...], ...]


def scalar(
    tree: Tree, latex: str = "", unit: Unit | None = None, *, decimal: bool = False
) -> Scalar:
    """Return a value with the rational value of its tree."""
    return Scalar(tree, rational(tree), latex, unit, decimal)


REALS = Interval(scalar(MINUS_INFINITY), scalar(INFINITY), (False, False))


def is_infinite(structure: Structure) -> bool:
    """Return whether a structure is plus or minus infinity."""
    return isinstance(structure, Scalar) and structure.tree in (INFINITY, MINUS_INFINITY)


def without_name(structure: Structure) -> Structure:
    """Return 5 for x = 5."""
    return structure.value if isinstance(structure, Named) else structure


def names_in(structure: Structure) -> frozenset[str]:
    """Return the names in the values of a structure; names of values (x in x = 5) do not count."""
    if isinstance(structure, Scalar):
        return frozenset() if structure.tree is None else names(structure.tree)
    return frozenset[str]().union(*map(names_in, _parts(structure)))


def rename(structure: Structure, new: dict[str, str]) -> Structure:
    """Return a structure with other names in its values."""
    if isinstance(structure, Scalar):
        if structure.tree is None:
            return structure
        tree = renamed(structure.tree, new)
        return Scalar(tree, structure.value, "", structure.unit, structure.decimal)
    changed = {
        field.name: _renamed_field(getattr(structure, field.name), new)
        for field in fields(structure)  # type: ignore[arg-type]
    }
    return type(structure)(**changed)


def _renamed_field(value: object, new: dict[str, str]) -> object:
    if isinstance(value, Structure):
        return rename(value, new)
    if isinstance(value, tuple) and value and isinstance(value[0], (Structure, tuple)):
        return tuple(_renamed_field(each, new) for each in value)
    if isinstance(value, str):
        return new.get(value, value)
    return renamed(value, new)


def _parts(structure: Structure) -> list[Structure]:
    found: list[Structure] = []
    for field in fields(structure):  # type: ignore[arg-type]
        waiting = [getattr(structure, field.name)]
        for value in waiting:
            if isinstance(value, Structure):
                found.append(value)
            elif isinstance(value, tuple) and field.name != "tree":
                waiting.extend(value)
    return found


def as_point(structure: Structure) -> Structure:
    """Return the tuple (3, 4) for P(3, 4), a point with its name; else the structure itself."""
    tree = structure.tree if isinstance(structure, Scalar) else None
    if not isinstance(tree, tuple) or tree[0] != "apply" or not tree[1][0].isupper():
        return structure
    return Tuple(tuple(map(scalar, tree[2:]))) if len(tree) > 3 else structure


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


def as_region(structure: Structure) -> Structure | None:
    """Return a structure as a set of real numbers, or None; a pair in () is an open interval.

    An interval that contains infinity is no set of real numbers.
    """
    if isinstance(structure, Tuple) and len(structure.items) == 2 and structure.brackets == "()":
        return Interval(*structure.items, (False, False))
    if isinstance(structure, Items) and structure.braces:
        return structure if all(isinstance(item, Scalar) for item in structure.items) else None
    if isinstance(structure, Interval):
        ends = zip((structure.low, structure.high), structure.closed, strict=True)
        return None if any(closed and is_infinite(end) for end, closed in ends) else structure
    return structure if isinstance(structure, Region) else None


def same_region(one: Structure, other: Structure, comparer: ExactComparer) -> bool | None:
    """Return whether two sets are equal and not empty; None if their ends have no known order."""
    groups: list[list[Scalar]] = []  # of equal ends, in ascending order
    for end in [*_ends(one), *_ends(other)]:
        orders = [comparer.order(end, group[0]) for group in groups]
        if None in orders:
            return None
        if 0 in orders:
            groups[orders.index(0)].append(end)
        else:
            groups.insert(orders.count(1), [end])
    ranks = {id(end): 2 * n + 1 for n, group in enumerate(groups) for end in group}
    cells = range(2 * len(groups) + 1)
    if any(_overlaps(each, cell, ranks) for each in (one, other) for cell in cells):
        return False
    inside = [_has(one, cell, ranks) for cell in cells]
    return any(inside) and inside == [_has(other, cell, ranks) for cell in cells]


def _ends(region: Structure) -> list[Scalar]:
    """Ends of intervals and members of sets, without infinity."""
    if isinstance(region, Scalar):
        return [] if is_infinite(region) else [region]
    parts = (region.low, region.high) if isinstance(region, Interval) else _members(region)
    return [end for part in parts for end in _ends(part)]


def _members(region: Structure) -> tuple[Structure, ...]:
    if isinstance(region, Items):
        return region.items
    return region.parts if isinstance(region, Region) else ()


def _has(region: Structure, cell: int, ranks: dict[int, int]) -> bool:
    """Return whether a cell is inside: gaps are even, the ends between them are odd."""
    if isinstance(region, Interval):
        low, high = (_rank(end, ranks) for end in (region.low, region.high))
        above = low < cell or (low == cell and region.closed[0])
        return above and (cell < high or (cell == high and region.closed[1]))
    if isinstance(region, Scalar):
        return ranks.get(id(region)) == cell
    inside = [_has(part, cell, ranks) for part in _members(region)]
    if isinstance(region, Region) and region.operator == "∖":
        return inside[0] and not any(inside[1:])
    return all(inside) if isinstance(region, Region) and region.operator == "∩" else any(inside)


def _overlaps(region: Structure, cell: int, ranks: dict[int, int]) -> bool:
    joined = isinstance(region, Region) and region.operator == "or"
    return joined and sum(_has(part, cell, ranks) for part in _members(region)) > 1


def _rank(end: Structure, ranks: dict[int, int]) -> float:
    if isinstance(end, Scalar) and is_infinite(end):
        return float("inf") if end.tree == INFINITY else float("-inf")
    return ranks[id(end)]


def has_parameters(region: Structure) -> bool:
    """Return whether an end has a name, or is no number."""
    return bool(names_in(region)) or any(end.tree is None for end in _ends(region))


_QUOTIENT = re.compile(r"d:[d∂](?:\^([0-9]))?(.+)/[d∂](.+?)(?:\^[0-9])?")


def in_notation_of(answer: Structure, gold: Structure) -> Structure:
    """Return an answer with its derivatives written as in the gold.

    dy/dt is y' and dot y, but never dy/dx.
    """
    given = _all_names(answer)
    if not any(map(_derivative, given)):
        return answer
    expected = _all_names(gold)
    new: dict[str, str] = {}
    for name in given - expected:
        if (found := _derivative(name)) is None:
            continue
        base, order, variable = found
        for other in expected - given:
            match _derivative(other):
                case (b, o, v) if (b, o) == (base, order) and None in (v, variable):
                    new[name] = other
    return rename(answer, new) if new else answer


def _derivative(name: str) -> tuple[str, int, str | None] | None:
    """Return the function, the order and the variable (None if it is not written)."""
    if found := _QUOTIENT.fullmatch(name):
        return found[2], int(found[1] or 1), found[3]
    bare = name.replace("'", "")
    return (bare, len(name) - len(bare), None) if bare != name else None


def _all_names(structure: Structure) -> frozenset[str]:
    """Return the names in a structure, also those of values and of both sides of equations."""
    found = frozenset[str]()
    waiting: list[object] = [structure]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Structure):
            waiting += [getattr(value, field.name) for field in fields(value)]  # type: ignore[arg-type]
        elif isinstance(value, tuple) and value:
            if isinstance(value[0], str):
                found |= names(value)
            else:
                waiting += value
    return found
