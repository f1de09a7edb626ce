"""Compare sets of real numbers: intervals, finite sets, and what is made of them.

All ends of both sets are put in order. Two sets are equal if they agree on each end and on each
gap between two ends.
"""

from __future__ import annotations

from typing import Protocol

from rlobj.answers.structures import (
    INFINITY,
    Interval,
    Items,
    Region,
    Scalar,
    Structure,
    Tuple,
    names_in,
)

_MINUS_INFINITY = ("neg", INFINITY)


class Order(Protocol):
    """Puts two real numbers in order."""

    def order(self, one: Scalar, other: Scalar) -> int | None:
        """Return a number below, equal to or above 0; None if it is not known."""
        ...


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
        return None if any(closed and _is_infinite(end) for end, closed in ends) else structure
    return structure if isinstance(structure, Region) else None


def same_region(one: Structure, other: Structure, comparer: Order) -> bool | None:
    """Return whether two sets are equal and not empty; None if their ends have no known order."""
    ends: list[Scalar] = []
    for end in [*_ends(one), *_ends(other)]:
        place = 0
        for place, known in enumerate([*ends, None]):
            order = -1 if known is None else comparer.order(end, known)
            if order is None:
                return None
            if order == 0:
                break
            if order < 0:
                ends.insert(place, end)
                break
    ranks: dict[int, int] = {}
    for end in [*_ends(one), *_ends(other)]:
        ranks[id(end)] = next(
            2 * n + 1 for n, known in enumerate(ends) if comparer.order(end, known) == 0
        )
    cells = range(2 * len(ends) + 1)
    if any(_overlaps(each, cell, ranks) for each in (one, other) for cell in cells):
        return False
    inside = [_has(one, cell, ranks) for cell in cells]
    return any(inside) and inside == [_has(other, cell, ranks) for cell in cells]


def _ends(region: Structure) -> list[Scalar]:
    """Ends of intervals and members of sets, without infinity."""
    if isinstance(region, Scalar):
        return [] if _is_infinite(region) else [region]
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
    if isinstance(end, Scalar) and _is_infinite(end):
        return float("inf") if end.tree == INFINITY else float("-inf")
    return ranks[id(end)]


def _is_infinite(end: Structure) -> bool:
    return isinstance(end, Scalar) and end.tree in (INFINITY, _MINUS_INFINITY)


def has_parameters(region: Structure) -> bool:
    """Return whether an end has a name, or is no number."""
    return bool(names_in(region)) or any(end.tree is None for end in _ends(region))
