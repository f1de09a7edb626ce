"""Clauses: what an objective did to each token of an update, and which part of a rule decided it.

A token is touched if it is dropped, masked by the mismatch correction, reweighted, switched to
another surrogate, or in the `where` of a penalty. The first of these counts. Importance weights
between the bounds of a mismatch correction touch no token, and neither does a penalty on all
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from rlobj.objectives import planning
from rlobj.objectives.frame import Frame
from rlobj.objectives.plan import Clauses
from rlobj.objectives.rules import Number, Rule
from rlobj.objectives.rules.nodes import Arithmetic, Column, Logic, When
from rlobj.objectives.settings import bind
from rlobj.objectives.surrogates import Surrogate, Switch

if TYPE_CHECKING:
    from torch import Tensor


def find_clauses(frame: Frame, objective: Any, factor: Tensor) -> Clauses:
    """The clauses of an update, after its plan was made on the same frame.

    The plan has evaluated all populations, so that nothing is exchanged between ranks.

    Args:
        frame: the tokens of the update.
        objective: the Objective.
        factor: m·ω, [N].
    """
    nothing = torch.full(frame.decided.shape, -1, dtype=torch.int16, device=frame.device)
    found = Clauses(factor, frame.rule(objective.phase), nothing)
    for rule in flat(objective.drop_rule, Logic, "|"):
        found.mark("dropped", rule, frame.holds(rule))
    for rule in flat(objective.keep_rule, Logic, "&"):
        found.mark("dropped", ~rule, ~frame.holds(rule))
    weights = [
        (text, where, frame.number(number))
        for part in flat(objective.weight, Arithmetic, "*")
        for text, where, number in _cases(frame, part, frame.decided)
    ]
    for text, where, values in weights:
        found.mark("dropped", text, where & (values == 0))
    mismatch = objective.mismatch
    if mismatch is not None:
        mismatch = bind(mismatch, planning.fixed_values(frame, {"mismatch": mismatch}))
        gap = frame.number(Column("sampler_gap"))
        for effect, text, where in mismatch.clauses(gap, frame.table, objective.mismatch):
            found.mark(effect, text, where)
    for text, where, values in weights:
        found.mark("reweighted", text, where & (values != 1))
    for rule, where in _switches(frame, objective.surrogate, frame.decided):
        found.mark("switched", rule, where)
    for penalty in objective.penalties:
        if penalty.where is not None:
            acts = frame.number(penalty.coefficient) != 0
            found.mark("penalised", penalty.where, frame.rule(penalty.where) & acts)
    return found


def flat(expression: Any, kind: type[Logic | Arithmetic], operator: str) -> list[Any]:
    """The operands of a chain of one operator: a | b | c -> a, b, c; None has none."""
    if isinstance(expression, kind) and expression.operator == operator:
        return [
            part
            for side in (expression.left, expression.right)
            for part in flat(side, kind, operator)
        ]
    return [] if expression is None else [expression]


def _cases(
    frame: Frame, number: Number, where: Tensor, path: Rule | None = None
) -> Iterator[tuple[str, Tensor, Number]]:
    """The cases of a chain of `when`: the condition, its tokens, and the number they get.

    The text of a number without `when` is the number's.
    """
    passed: Rule | None = None
    while isinstance(number, When):
        held = frame.holds(number.rule)
        condition = number.rule if path is None else path & number.rule
        yield from _cases(frame, number.then, where & held, condition)
        where = where & ~held
        passed = number.rule if passed is None else passed | number.rule
        number = number.otherwise
    if passed is not None:
        path = ~passed if path is None else path & ~passed
    yield str(number if path is None else path), where, number


def _switches(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from _switches(frame, surrogate.then, where & held)
        yield from _switches(frame, surrogate.otherwise, where & ~held)
