"""The kinds of thing an answer can be; two answers of different kinds are never equal."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rlobj.answers.exact import rational
from rlobj.answers.expressions import Tree
from rlobj.answers.units import Unit

__all__ = [
    "INFINITY",
    "Based",
    "Chain",
    "Interval",
    "Items",
    "Matrix",
    "Named",
    "Relation",
    "Rounded",
    "Scalar",
    "Structure",
    "Tuple",
    "Union",
    "Words",
    "scalar",
]

INFINITY = ("const", "∞")


@dataclass(frozen=True)
class Scalar:
    """A value."""

    tree: Tree
    """None where the grammar does not reach; then only the LaTeX is known."""
    value: Fraction | None
    """The exact value, where it is rational."""
    latex: str = ""
    unit: Unit | None = None
    decimal: bool = False
    """A number written with a decimal point or in e-notation, hence perhaps rounded."""


@dataclass(frozen=True)
class Rounded:
    """A value with its rounding, 14/3 ≈ 4.67; or a rounding alone, ≈ 4.67."""

    value: Structure | None
    about: Structure


@dataclass(frozen=True)
class Based:
    """A numeral in a base other than ten."""

    digits: str
    base: int


@dataclass(frozen=True)
class Words:
    """Prose: a name, yes or no, a choice; without case but for single letters."""

    text: str


@dataclass(frozen=True)
class Tuple:
    """Values in order. Two in () may also be an open interval; `:` is a ratio or a time."""

    items: tuple[Structure, ...]
    brackets: str = "()"


@dataclass(frozen=True)
class Items:
    r"""Values in no order, repeats counted: a list, the two values of \pm, or a set in braces."""

    items: tuple[Structure, ...]
    braces: bool = False


@dataclass(frozen=True)
class Interval:
    """All numbers between two bounds; `variable` where an inequality named it."""

    low: Structure
    high: Structure
    closed: tuple[bool, bool]
    variable: str | None = None


@dataclass(frozen=True)
class Union:
    """Intervals and sets, joined."""

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
    """Values said to be equal: 2^{10} = 1024."""

    values: tuple[Structure, ...]


@dataclass(frozen=True)
class Named:
    """A value with its name: x = 5, f(x) = 2x, x in [0, 1], 3 (mod 7)."""

    name: str
    value: Structure
    tree: Tree = None
    """The name as an expression, where it is one."""


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
    """A value from its tree."""
    return Scalar(tree, rational(tree), latex, unit, decimal)
