"""The structures of answers; answers with different structures are usually not equal."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlobj.answers.expressions import Tree
from rlobj.answers.rational import rational
from rlobj.answers.units import Unit

INFINITY = ("const", "∞")


@dataclass(frozen=True)
class Scalar:
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
class Rounded:
    """A value with its rounded value, 14/3 ≈ 4.67; or a rounded value alone, ≈ 4.67."""

    value: Structure | None
    about: Structure


@dataclass(frozen=True)
class Based:
    """A numeral in a base other than ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Words:
    """A name, yes or no, a choice or prose; lower case, except single letters."""

    text: str


@dataclass(frozen=True)
class Tuple:
    """Ordered values. Two in () may be an open interval; `:` is a ratio or a time."""

    items: tuple[Structure, ...]
    brackets: str = "()"


@dataclass(frozen=True)
class Items:
    r"""Unordered values with repetitions: a list, both values of \pm, or a set in braces."""

    items: tuple[Structure, ...]
    braces: bool = False


@dataclass(frozen=True)
class Interval:
    """All numbers between two bounds; `variable` is the name used in an inequality."""

    low: Structure
    high: Structure
    closed: tuple[bool, bool]
    variable: str | None = None


@dataclass(frozen=True)
class Union:
    """A union of intervals and sets."""

    parts: tuple[Structure, ...]
    variable: str | None = None


@dataclass(frozen=True)
class Relation:
    """An equation or an inequality that is not solved for a name."""

    symbol: str
    left: Tree
    right: Tree


@dataclass(frozen=True)
class Chain:
    """Values with equals signs between them: 2^{10} = 1024."""

    values: tuple[Structure, ...]


@dataclass(frozen=True)
class Named:
    """A value with its name: x = 5, f(x) = 2x, x in [0, 1], 3 (mod 7)."""

    name: str
    value: Structure
    tree: Tree = None
    """The name as an expression, or None."""


@dataclass(frozen=True)
class Matrix:
    """Rows of a matrix."""

    rows: tuple[tuple[Structure, ...], ...]


Structure = (
    Scalar
    | Rounded
    | Based
    | Words
    | Tuple
    | Items
    | Interval
    | Union
    | Relation
    | Chain
    | Named
    | Matrix
)


def scalar(
    tree: Tree, latex: str = "", unit: Unit | None = None, *, decimal: bool = False
) -> Scalar:
    """Return a value with the rational value of its tree."""
    return Scalar(tree, rational(tree), latex, unit, decimal)
