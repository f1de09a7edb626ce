"""Clauses: what an objective did to each token of an update, and which part of a rule decided it.

A token is touched if it is dropped, masked by the mismatch correction, reweighted, switched to
another surrogate, or in the `where` of a penalty. The first of these counts. Importance weights
between the bounds of a mismatch correction touch no token, and neither does a penalty on all
tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.rules import Expr, Number, Rule
from rlobj.objectives.rules.nodes import Arithmetic, Column, Logic, When, operands
from rlobj.objectives.surrogates import Surrogate, Switch
from rlobj.objectives.weights import with_values

EFFECTS = ("dropped", "masked", "reweighted", "switched", "penalised")
"""What an objective does to tokens; the first that applies to a token is its effect."""


@dataclass(frozen=True)
class Clauses:
    """What an objective did to each token.

    Attributes:
        factor: m·ω, [N]; 0 outside the phase.
        in_phase: the tokens of decided responses in the phase, bool [N].
        codes: the place in `causes`, int16 [N]; −1 = the token was not touched.
        causes: pairs of effect and clause; `rlobj.parse` reads a clause without names of `let`,
            which only very long ones have.
    """

    factor: Tensor
    in_phase: Tensor
    codes: Tensor
    causes: list[tuple[str, str]] = field(default_factory=list)

    def mark(self, effect: str, clause: Expr | str, where: Tensor) -> None:
        """Touch the tokens of `where` [N] that are in the phase and not touched yet."""
        self.codes.masked_fill_(where & self.in_phase & (self.codes < 0), len(self.causes))
        self.causes.append((effect, clause if isinstance(clause, str) else clause.written_out()))

    def touched(self, effect: str) -> Tensor:
        """The tokens with this effect, bool [N]."""
        places = [place for place, (mark, _) in enumerate(self.causes) if mark == effect]
        return torch.isin(self.codes, self.codes.new_tensor(places))


def find_clauses(
    frame: Frame,
    factor: Tensor,
    *,
    phase: Rule | None,
    drop: Rule | None,
    keep: Rule | None,
    weight: Number | None,
    mismatch: Mismatch | None,
    surrogate: Surrogate,
    penalties: Sequence[Penalty],
) -> Clauses:
    """The clauses of an update, after its plan was made on the same frame.

    The plan has evaluated all populations, so that nothing is exchanged between ranks.

    Args:
        frame: the tokens of the update.
        factor: m·ω, [N].
        phase: the tokens of this phase; None = all.
        drop: the rule that drops tokens.
        keep: the rule that keeps them.
        weight: ω, without the mismatch factor.
        mismatch: the correction between sampler and trainer.
        surrogate: S.
        penalties: P_k.
    """
    nothing = torch.full(frame.decided.shape, -1, dtype=torch.int16, device=frame.device)
    clauses = Clauses(factor, frame.rule(phase), nothing)
    for rule in operands(drop, Logic, "|"):
        clauses.mark("dropped", rule, frame.holds(rule))
    for rule in operands(keep, Logic, "&"):
        clauses.mark("dropped", ~rule, ~frame.holds(rule))
    weights = [
        (text, where, frame.number(number))
        for part in operands(weight, Arithmetic, "*")
        for text, where, number in _cases(frame, part, frame.decided)
    ]
    for text, where, values in weights:
        clauses.mark("dropped", text, where & (values == 0))
    if mismatch is not None:
        gap = frame.number(Column("sampler_gap"))
        correction = with_values(frame, mismatch)
        for effect, text, where in correction.clauses(gap, frame.table, mismatch):
            clauses.mark(effect, text, where)
    for text, where, values in weights:
        clauses.mark("reweighted", text, where & (values != 1))
    for rule, where in _switches(frame, surrogate, frame.decided):
        clauses.mark("switched", rule, where)
    for penalty in penalties:
        if penalty.where is not None:
            acts = frame.number(penalty.coefficient) != 0
            clauses.mark("penalised", penalty.where, frame.rule(penalty.where) & acts)
    return clauses


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
    yield (number if path is None else path).written_out(), where, number


def _switches(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from _switches(frame, surrogate.then, where & held)
        yield from _switches(frame, surrogate.otherwise, where & ~held)
