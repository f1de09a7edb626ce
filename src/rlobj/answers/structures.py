"""The structures of answers; answers with different structures are usually not equal."""

from dataclasses import dataclass
from fractions import Fraction

from rlobj.answers.expressions import Tree, names, rational, renamed

Unit = frozenset[tuple[str, int]]
"""Unit -> exponent, as pairs: m/s^2 is {(m, 1), (s, -2)}."""
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


def tree_of(structure: Structure | None) -> Tree:
    """Return the tree of a value; None for another structure."""
    return structure.tree if isinstance(structure, Scalar) else None


def without_name(structure: Structure) -> Structure:
    """Return 5 for x = 5."""
    return structure.value if isinstance(structure, Named) else structure


def names_in(structure: Structure, everywhere: bool = False) -> frozenset[str]:
    """Return the names in the values of a structure; names of values (x in x = 5) do not count.

    Args:
        structure: of an answer.
        everywhere: count also the names of values, and those of both sides of equations.
    """
    letters = frozenset[str]()
    waiting: list[object] = [structure]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Scalar):
            letters |= frozenset() if value.tree is None else names(value.tree)
        elif isinstance(value, Structure):
            waiting += vars(value).values()
        elif isinstance(value, tuple) and value:
            if not isinstance(value[0], str):
                waiting += value
            elif everywhere:
                letters |= names(value)
    return letters


def rename(structure: Structure, new: dict[str, str]) -> Structure:
    """Return a structure with other names in its values."""
    if isinstance(structure, Scalar):
        if structure.tree is None:
            return structure
        tree = renamed(structure.tree, new)
        return Scalar(tree, structure.value, "", structure.unit, structure.decimal)
    changed = {name: _renamed_field(value, new) for name, value in vars(structure).items()}
    return type(structure)(**changed)


def _renamed_field(value: object, new: dict[str, str]) -> object:
    if isinstance(value, Structure):
        return rename(value, new)
    if isinstance(value, tuple) and value and isinstance(value[0], (Structure, tuple)):
        return tuple(_renamed_field(part, new) for part in value)
    if isinstance(value, str):
        return new.get(value, value)
    return renamed(value, new)


def as_point(structure: Structure) -> Structure:
    """Return the tuple (3, 4) for P(3, 4), a point with its name; else the structure itself."""
    tree = tree_of(structure)
    if not isinstance(tree, tuple) or tree[0] != "apply" or not tree[1][0].isupper():
        return structure
    return Tuple(tuple(map(scalar, tree[2:]))) if len(tree) > 3 else structure
