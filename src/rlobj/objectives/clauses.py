"""Clauses: what an objective did to each token of an update, and which part of a rule decided it.

A token is touched if it is dropped, masked by the mismatch correction, reweighted, switched to
another surrogate, or in the `where` of a penalty. The first of these counts. Importance weights
between the bounds of a mismatch correction touch no token, and neither does a penalty on all
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Number, Rule
from rlobj.objectives.rules.nodes import Arithmetic, Logic, When
from rlobj.objectives.surrogates import Surrogate, Switch

if TYPE_CHECKING:
    from torch import Tensor


def flat(expression: Any, kind: type[Logic | Arithmetic], operator: str) -> list[Any]:
    """The operands of a chain of one operator: a | b | c -> a, b, c; None has none."""
    if isinstance(expression, kind) and expression.operator == operator:
        return [
            part
            for side in (expression.left, expression.right)
            for part in flat(side, kind, operator)
        ]
    return [] if expression is None else [expression]


def cases(
    frame: Frame, number: Number, where: Tensor, path: Rule | None = None
) -> Iterator[tuple[str, Tensor, Number]]:
    """The cases of a chain of `when`: the condition, its tokens, and the number they get.

    The text of a number without `when` is the number's.
    """
    passed: Rule | None = None
    while isinstance(number, When):
        held = frame.holds(number.rule)
        condition = number.rule if path is None else path & number.rule
        yield from cases(frame, number.then, where & held, condition)
        where = where & ~held
        passed = number.rule if passed is None else passed | number.rule
        number = number.otherwise
    if passed is not None:
        path = ~passed if path is None else path & ~passed
    yield str(number if path is None else path), where, number


def switches(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from switches(frame, surrogate.then, where & held)
        yield from switches(frame, surrogate.otherwise, where & ~held)
