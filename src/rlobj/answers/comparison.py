"""Compare the structure of an answer with the structure of the gold answer, part by part.

Every function returns True, False, or None if the comparer of values cannot decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

from rlobj.answers.exact import ExactComparer, Truth
from rlobj.answers.expressions import names
from rlobj.answers.regions import as_region, has_parameters, same_region
from rlobj.answers.structures import (
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
    names_in,
    rename,
    without_name,
)
from rlobj.answers.units import PERCENT
from rlobj.answers.words import normalize_words


def compare(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Return whether two structures are the same answer; different kinds never are."""
    equation = isinstance(gold, Named) and gold.compound
    if equation or isinstance(answer, Relation) or isinstance(gold, Relation):
        return _relations(answer, gold, comparer)
    if isinstance(gold, Chain):
        return compare(answer, gold.values[0], comparer)
    if isinstance(gold, Rounded):
        return compare(answer, gold.value or gold.about, comparer)
    if isinstance(answer, Chain):
        return _all(compare(each, without_name(gold), comparer) for each in answer.values)
    if isinstance(answer, Rounded):
        return _rounded(answer, without_name(gold), comparer)
    if isinstance(answer, Named) or isinstance(gold, Named):
        return _named(answer, gold, comparer)
    if isinstance(answer, Words) or isinstance(gold, Words):
        return _text(answer) == _text(gold) != ""
    if isinstance(answer, (Interval, Region)) or isinstance(gold, (Interval, Region)):
        return _regions(answer, gold, comparer)
    if isinstance(answer, Items) or isinstance(gold, Items):
        return _lists(answer, gold, comparer)
    if isinstance(answer, Scalar) and isinstance(gold, Scalar):
        if None not in (answer.unit, gold.unit) and answer.unit != gold.unit:
            return False
        if gold.unit != PERCENT or answer.unit is not None:
            return comparer.equal(answer, gold)
        return _any(comparer.equal(answer, each) for each in (gold, _hundredfold(gold)))
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


def _hundredfold(gold: Scalar) -> Scalar:
    """62.5 for 62.5%: benchmarks mean the number before the sign."""
    value = None if gold.value is None else gold.value * 100
    return replace(gold, tree=("*", gold.tree, Fraction(100)), value=value)


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


def _named(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    for one, other in ((answer, gold), (gold, answer)):
        if isinstance(other, Words) and getattr(one, "name", "") == f"choice {other.text}":
            return True
    if isinstance(answer, Named) and isinstance(gold, Named) and answer.name != gold.name:
        if (value := _as_function(answer, gold)) is not None:
            return compare(value, gold.value, comparer)
        return _relations(answer, gold, comparer)
    letters = answer.name.strip("()[]").split(",") if isinstance(answer, Named) else []
    if letters != sorted(letters) and "".join(sorted(letters)) in _ALPHABET:
        return False  # (y, x) = (1, 2)
    variable = getattr(answer, "variable", None) or getattr(gold, "variable", None)
    for each in (answer, gold):
        if isinstance(each, Named) and variable not in (None, each.name):
            return False
    if isinstance(answer, Named) and answer.tree is not None and not isinstance(gold, Named):
        value = answer.value.tree if isinstance(answer.value, Scalar) else None
        if isinstance(value, tuple) and value[0] == "name" and value[1] not in names_in(gold):
            return compare(Scalar(answer.tree, None), gold, comparer)  # 2k + 1 = n
    return compare(without_name(answer), without_name(gold), comparer)


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
    (_, given, *old), (_, expected, *new) = trees
    if given != expected or len(old) != len(new) or {t[0] for t in trees} != {"apply"}:
        return None
    if not all(isinstance(each, tuple) and each[0] == "name" for each in (*old, *new)):
        return None
    mapping = {a[1]: b[1] for a, b in zip(old, new, strict=True)}
    if len(mapping) < len(old) or (names_in(answer.value) - set(mapping)) & set(mapping.values()):
        return None
    return rename(answer.value, mapping)


def _lists(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    given, expected = _flat(answer), _flat(gold)
    for one, other in ((answer, gold), (gold, answer)):
        if isinstance(one, Items) and one.braces and not isinstance(other, Items):
            return False  # {5} is not a number
    if isinstance(gold, Tuple) and isinstance(answer, Items) and len(given) == len(gold.items):
        labelled = {each.name: each.value for each in given if isinstance(each, Named)}
        if len(labelled) < len(gold.items) or answer.alternatives:
            return False
        labels = "".join(sorted(labelled))
        if labels in _ALPHABET:  # y = 2, x = 1
            labelled = {label: labelled[label] for label in labels}
        return compare(Tuple(tuple(labelled.values()), "()"), gold, comparer)
    unknowns = {re.sub(r"_\w+|'", "", each.name) for each in given if isinstance(each, Named)}
    if len(unknowns) > 1 and not any(isinstance(each, Named) for each in expected):
        return False  # x = 1, y = 2 says which is which
    return _matched(given, expected, comparer)


def _flat(structure: Structure, inner: bool = False) -> list[Structure]:
    r"""Elements of a list; \pm inside a list or tuple gives two, and each keeps the name."""
    if isinstance(structure, Named):
        return [replace(structure, value=each) for each in _flat(structure.value, inner)]
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
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"


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
    given, expected = as_region(answer), as_region(gold)
    if len(variables) > 1 or given is None or expected is None:
        return False
    parameters = has_parameters(given) or has_parameters(expected)
    if parameters or isinstance(given, Interval):
        same = _same_parts(given, expected, comparer)
        if parameters or same is not False:
            return same
    return same_region(expected, given, comparer)


def _same_parts(given: Structure, expected: Structure, comparer: ExactComparer) -> Truth:
    if isinstance(given, Interval) and isinstance(expected, Interval):
        ends = ((given.low, expected.low), (given.high, expected.high))
        return given.closed == expected.closed and _all(compare(a, g, comparer) for a, g in ends)
    if not isinstance(given, Region) or not isinstance(expected, Region):
        return False
    same = given.operator == expected.operator
    return same and _matched(list(given.parts), list(expected.parts), comparer)


def _relations(answer: Structure, gold: Structure, comparer: ExactComparer) -> Truth:
    """Equations and inequalities are equal if their differences have a constant ratio."""
    if isinstance(gold, Named) and not (gold.compound or names_in(gold.value)):
        return False  # the gold x = 5 needs a solved equation
    given, expected = _equation(answer), _equation(gold)
    if given is None or expected is None or given.symbol != expected.symbol:
        return False
    answer_tree, gold_tree = (("-", each.left, each.right) for each in (given, expected))
    ordered = given.symbol in ("<", "<=")
    return bool(names(answer_tree)) and comparer.proportional(answer_tree, gold_tree, ordered)


def _equation(structure: Structure) -> Relation | None:
    if not isinstance(structure, Named):
        return structure if isinstance(structure, Relation) else None
    value = structure.value.tree if isinstance(structure.value, Scalar) else None
    name = structure.tree or ("name", structure.name)
    return None if value is None else Relation("=", name, value)


def _all(truths: Iterable[Truth]) -> Truth:
    found: Truth = True
    for truth in truths:
        if truth is False:
            return False
        found = found and truth
    return found


def _any(truths: Iterable[Truth]) -> Truth:
    opposite = _all(None if truth is None else not truth for truth in truths)
    return None if opposite is None else not opposite
