"""The structures of answers; answers with different structures are usually not equal."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlobj.answers.expressions import Tree
from rlobj.answers.rational import rational
from rlobj.answers.units import Unit

INFINITY = ("const", "∞")


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


@dataclass(frozen=True)
class Interval(Structure):
    """All numbers between two bounds; `variable` is the name used in an inequality."""

    low: Structure
    high: Structure
    closed: tuple[bool, bool]
    variable: str | None = None


@dataclass(frozen=True)
class Union(Structure):
    """A union of intervals and sets."""

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
    """A value with its name: x = 5, f(x) = 2x, x in [0, 1], 3 (mod 7)."""

    name: str
    value: Structure
    tree: Tree = None
    """The name as an expression, or None."""


@dataclass(frozen=True)
class Matrix(Structure):
    """Rows of a matrix."""

    rows: tuple[tuple[Structure, ...], ...]


def scalar(
    tree: Tree, latex: str = "", unit: Unit | None = None, *, decimal: bool = False
) -> Scalar:
    """Return a value with the rational value of its tree."""
    return Scalar(tree, rational(tree), latex, unit, decimal)
