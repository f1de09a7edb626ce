"""Compare sets of real numbers: intervals, finite sets, and what is made of them.

All ends of both sets are put in order. Two sets are equal if they agree on each end and on each
gap between two ends.
"""

from __future__ import annotations

from rlobj.answers.exact import ExactComparer
from rlobj.answers.structures import (
    INFINITY,
    Interval,
    Items,
    Region,
    Scalar,
    Structure,
    Tuple,
    is_infinite,
    names_in,
)


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
    if any(_overlaps(region, cell, ranks) for region in (one, other) for cell in cells):
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
