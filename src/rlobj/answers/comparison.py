"""Compare the structure of an answer with the structure of the gold answer, part by part.

`RULES` is the order of decision, from top to bottom: the first rule that decides counts. Every
function returns True, False, or None if the comparer of values cannot decide.

Two sets of real numbers are equal if they agree on each of their ends, in order, and on each gap
between two ends.
"""

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Final, Literal

from rlobj.answers.expressions import Tree, names
from rlobj.answers.structures import (
    INFINITY,
    Based,
    Chain,
    Interval,
    Items,
    Matrix,
    Named,
    Region,
    Relation,
    Rounded,
    Scalar,
    Structure,
    Tuple,
    Words,
    is_infinite,
    names_in,
    rename,
    tree_of,
    without_name,
)
from rlobj.answers.words import PERCENT, normalize_words

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


Decision = Truth | Literal["later"]
LATER: Final = "later"
"""A rule that does not decide leaves the pair to the rules after it."""
Rule = Callable[..., Decision]

_MAX_CHOICES = 256
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def compare(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Return whether two structures are the same answer; different kinds never are."""
    for rule in _rules_about(type(answer), type(gold)):
        decision = rule(answer, gold, comparer)
        if decision != LATER:
            return decision
    return False


@functools.cache
def _rules_about(answer: type[Structure], gold: type[Structure]) -> list[Rule]:
    """The rules about an answer and a gold answer of these kinds, in their order."""
    rules: list[Rule] = []
    for side, kinds, rule in RULES:
        matches = {"answer": issubclass(answer, kinds), "gold": issubclass(gold, kinds)}
        matches |= {"either": any(matches.values()), "both": all(matches.values())}
        if matches[side]:
            rules.append(rule)
    return rules


# The rules, in their order.


def _gold_equation(answer: Structure, gold: Named, comparer: ExactComparer) -> Decision:
    """A gold answer such as x + y = 5 is an equation, and so must be the answer."""
    return _relations(answer, gold, comparer) if gold.compound else LATER


def _relations(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Equations and inequalities are equal if their differences have a constant ratio."""
    if isinstance(gold, Named) and not (gold.compound or names_in(gold.value)):
        return False  # the gold x = 5 needs a solved equation
    relation, gold_relation = _equation(answer), _equation(gold)
    if relation is None or gold_relation is None or relation.symbol != gold_relation.symbol:
        return False
    tree, gold_tree = (("-", side.left, side.right) for side in (relation, gold_relation))
    ordered = relation.symbol in ("<", "<=")
    return bool(names(tree)) and comparer.proportional(tree, gold_tree, ordered)


def _gold_rounding(answer: Structure, gold: Rounded, comparer: ExactComparer) -> Truth:
    """A gold answer 14/3 ≈ 4.67 is its exact value, and ≈ 4.67 its rounded one."""
    return compare(answer, gold.value or gold.about, comparer)


def _chain(answer: Chain, gold: Structure, comparer: ExactComparer) -> Truth:
    """All values of an answer 2^{10} = 1024 must equal the gold answer."""
    return _all(compare(value, without_name(gold), comparer) for value in answer.values)


def _rounding(answer: Rounded, gold: Structure, comparer: ExactComparer) -> Truth:
    """14/3 ≈ 4.67 equals 14/3 if both are close; ≈ 4.67 alone can equal a decimal only."""
    gold = without_name(gold)
    if answer.value is None:
        decimal = isinstance(gold, Scalar) and gold.decimal
        return compare(answer.about, gold, comparer) if decimal else False
    value = answer.value.values[0] if isinstance(answer.value, Chain) else answer.value
    if not isinstance(value, Scalar) or not isinstance(answer.about, Scalar):
        return False
    return _all((compare(answer.value, gold, comparer), comparer.near(answer.about, value)))


def _letter_of_choice(answer: Structure, gold: Structure, comparer: ExactComparer) -> Decision:
    """The letter C equals the choice (C) 12."""
    for choice, letter in ((answer, gold), (gold, answer)):
        if isinstance(letter, Words) and getattr(choice, "name", "") == f"choice {letter.text}":
            return True
    return LATER


def _other_name(answer: Named, gold: Named, comparer: ExactComparer) -> Decision:
    """Values of other names are equal as one function, f(n) = 2n and f(x) = 2x, or as equations."""
    if answer.name == gold.name:
        return LATER
    if (value := _as_function(answer, gold)) is not None:
        return compare(value, gold.value, comparer)
    return _relations(answer, gold, comparer)


def _other_order_of_names(answer: Named, gold: Structure, comparer: ExactComparer) -> Decision:
    """(y, x) = (1, 2) is no answer, because the gold answer has the order of the alphabet."""
    letters = answer.name.strip("()[]").split(",")
    return False if letters != sorted(letters) and _in_alphabet(letters) else LATER


def _other_variable(answer: Structure, gold: Structure, comparer: ExactComparer) -> Decision:
    """x in [0, 1] is about another name than 0 < y < 1."""
    variable = getattr(answer, "variable", None) or getattr(gold, "variable", None)
    named = [side.name for side in (answer, gold) if isinstance(side, Named)]
    return False if variable and any(name != variable for name in named) else LATER


def _without_names(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """A name may be left out: x = 5 is 5."""
    return compare(without_name(answer), without_name(gold), comparer)


def _sets(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Intervals and regions are compared by their ends, and with parameters part by part."""
    variables = {getattr(side, "variable", None) for side in (answer, gold)} - {None}
    answer_set, gold_set = as_region(answer), as_region(gold)
    if len(variables) > 1 or answer_set is None or gold_set is None:
        return False
    parameters = has_parameters(answer_set) or has_parameters(gold_set)
    if parameters or isinstance(answer_set, Interval):
        same = _same_parts(answer_set, gold_set, comparer)
        if parameters or same is not False:
            return same
    return same_region(gold_set, answer_set, comparer)


def _set_in_braces(answer: Structure, gold: Structure, comparer: ExactComparer) -> Decision:
    """{5} is not a number."""
    for one, other in ((answer, gold), (gold, answer)):
        if isinstance(one, Items) and one.braces and not isinstance(other, Items):
            return False
    return LATER


def _named_coordinates(answer: Items, gold: Structure, comparer: ExactComparer) -> Decision:
    """y = 2, x = 1 is the tuple (1, 2); a list without names is no tuple of that length."""
    values = _flat(answer)
    if not isinstance(gold, Tuple) or len(values) != len(gold.items):
        return LATER
    coordinates = {value.name: value.value for value in values if isinstance(value, Named)}
    if len(coordinates) < len(gold.items) or answer.alternatives:
        return False
    if _in_alphabet(coordinates):
        coordinates = dict(sorted(coordinates.items()))
    return compare(Tuple(tuple(coordinates.values()), "()"), gold, comparer)


def _several_unknowns(answer: Items, gold: Structure, comparer: ExactComparer) -> Decision:
    """x = 1, y = 2 says which is which, so a list without names does not equal it."""
    unknowns = {re.sub(r"_\w+|'", "", v.name) for v in _flat(answer) if isinstance(v, Named)}
    named = any(isinstance(value, Named) for value in _flat(gold))
    return False if len(unknowns) > 1 and not named else LATER


def _lists(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Lists and sets are equal in any order."""
    return _matched(_flat(answer), _flat(gold), comparer)


def _other_unit(answer: Scalar, gold: Scalar, comparer: ExactComparer) -> Decision:
    """A unit may be left out, but not be another one."""
    return False if None not in (answer.unit, gold.unit) and answer.unit != gold.unit else LATER


def _percent(answer: Scalar, gold: Scalar, comparer: ExactComparer) -> Decision:
    """For 62.5%, benchmarks mean 0.625 or the number before the sign."""
    if gold.unit != PERCENT or answer.unit is not None:
        return LATER
    value = None if gold.value is None else gold.value * 100
    before_sign = replace(gold, tree=("*", gold.tree, Fraction(100)), value=value)
    return _any(comparer.equal(answer, meant) for meant in (gold, before_sign))


def _rows(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Tuples and matrices have the same brackets, the same shape and equal entries."""
    if getattr(answer, "brackets", "()") != getattr(gold, "brackets", "()"):
        return False
    rows, gold_rows = _entries(answer, gold), _entries(gold, answer)
    if list(map(len, rows)) != list(map(len, gold_rows)):
        return False
    pairs = (zip(*both, strict=True) for both in zip(rows, gold_rows, strict=True))
    return _all(compare(*pair, comparer) for row in pairs for pair in row)


Side = Literal["answer", "gold", "either", "both"]
RULES: tuple[tuple[Side, type[Structure] | tuple[type[Structure], ...], Rule], ...] = (
    ("gold", Named, _gold_equation),
    ("either", Relation, _relations),
    # A gold answer 2^{10} = 1024 is its first value.
    ("gold", Chain, lambda answer, gold, comparer: compare(answer, gold.values[0], comparer)),
    ("gold", Rounded, _gold_rounding),
    ("answer", Chain, _chain),
    ("answer", Rounded, _rounding),
    ("either", Named, _letter_of_choice),
    ("both", Named, _other_name),
    ("answer", Named, _other_order_of_names),
    ("either", Named, _other_variable),
    ("either", Named, _without_names),
    ("either", Words, lambda answer, gold, _: _text(answer) == _text(gold) != ""),
    ("either", (Interval, Region), _sets),
    ("either", Items, _set_in_braces),
    ("answer", Items, _named_coordinates),
    ("answer", Items, _several_unknowns),
    ("either", Items, _lists),
    ("both", Scalar, _other_unit),
    ("both", Scalar, _percent),
    ("both", Scalar, lambda answer, gold, comparer: comparer.equal(answer, gold)),
    ("either", Based, lambda answer, gold, _: answer == gold),
    ("both", (Tuple, Matrix), _rows),
)
"""Whose structure must be of which kind, and the rule; the first rule that decides counts."""


# What the rules are made of.


def _entries(structure: Structure, other: Structure) -> Sequence[Sequence[Structure]]:
    """Rows of a matrix or tuple; a column counts as a row if the other one is a tuple."""
    if isinstance(structure, Tuple):
        return [structure.items]
    assert isinstance(structure, Matrix)
    if isinstance(other, Tuple) and all(len(row) == 1 for row in structure.rows):
        return [[row[0] for row in structure.rows]]
    return structure.rows


def _text(structure: Structure) -> str:
    if isinstance(structure, Words):
        return structure.text
    return normalize_words(structure.latex) if isinstance(structure, Scalar) else ""


def _in_alphabet(letters: Iterable[str]) -> bool:
    """Return whether these are letters that follow each other in the alphabet, in any order."""
    return "".join(sorted(letters)) in _ALPHABET


def _as_function(answer: Named, gold: Named) -> Structure | None:
    """Return the value of f(x) with the gold's variable, for f(n); None if the functions differ.

    y = ... and f(x) = ... name the same function.
    """
    trees = answer.tree, gold.tree
    if not all(isinstance(tree, tuple) for tree in trees):
        return None
    if {tree[0] for tree in trees} == {"apply", "name"}:
        plain, applied = sorted(trees, key=lambda tree: tree[0] == "apply")
        of_another = plain[1] == "y" and len(applied) == 3 and applied[2] != ("name", "y")
        return answer.value if of_another else None
    (_, function, *old), (_, gold_function, *new) = trees
    applied = {tree[0] for tree in trees} == {"apply"}
    if not applied or function != gold_function or len(old) != len(new):
        return None
    if not all(isinstance(part, tuple) and part[0] == "name" for part in (*old, *new)):
        return None
    mapping = {a[1]: b[1] for a, b in zip(old, new, strict=True)}
    if len(mapping) < len(old) or (names_in(answer.value) - set(mapping)) & set(mapping.values()):
        return None
    return rename(answer.value, mapping)


def _flat(structure: Structure, inner: bool = False) -> list[Structure]:
    r"""Elements of a list; \pm inside a list or tuple gives two, and each keeps the name."""
    if isinstance(structure, Named):
        return [replace(structure, value=value) for value in _flat(structure.value, inner)]
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


def _matched(
    answers: Sequence[Structure], golds: Sequence[Structure], comparer: ExactComparer
) -> Truth:
    """Return whether each answer has a gold answer of its own, in any order."""
    if len(answers) != len(golds):
        return False
    truth = functools.cache(lambda a, g: compare(answers[a], golds[g], comparer))
    if _can_pair(len(golds), lambda a, g: truth(a, g) is True):
        return True
    return None if _can_pair(len(golds), lambda a, g: truth(a, g) is not False) else False


def _can_pair(count: int, fits: Callable[[int, int], bool]) -> bool:
    """Return whether answers and gold answers fit in pairs: a perfect bipartite matching.

    Equality is not transitive: 8% is 0.08 or 8. So a gold answer may take the answer of an earlier
    one that finds another (Kuhn 1955).
    """
    gold_of: dict[int, int] = {}

    def finds_answer(gold: int, tried: set[int]) -> bool:
        for answer in range(count):
            if answer not in tried and fits(answer, gold):
                tried.add(answer)
                if answer not in gold_of or finds_answer(gold_of[answer], tried):
                    gold_of[answer] = gold
                    return True
        return False

    return all(finds_answer(gold, set()) for gold in range(count))


def _same_parts(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    if isinstance(answer, Interval) and isinstance(gold, Interval):
        ends = ((answer.low, gold.low), (answer.high, gold.high))
        return answer.closed == gold.closed and _all(compare(a, g, comparer) for a, g in ends)
    if not isinstance(answer, Region) or not isinstance(gold, Region):
        return False
    return answer.operator == gold.operator and _matched(answer.parts, gold.parts, comparer)


def _equation(structure: Structure) -> Relation | None:
    if not isinstance(structure, Named):
        return structure if isinstance(structure, Relation) else None
    value = tree_of(structure.value)
    name = structure.tree or ("name", structure.name)
    return None if value is None else Relation("=", name, value)


def _all(truths: Iterable[Truth]) -> Truth:
    result: Truth = True
    for truth in truths:
        if truth is False:
            return False
        result = result and truth
    return result


def _any(truths: Iterable[Truth]) -> Truth:
    opposite = _all(None if truth is None else not truth for truth in truths)
    return None if opposite is None else not opposite
