"""Clauses: what an objective did to each token of an update, and which part of a rule decided it.

A token is touched if it is dropped, masked by the mismatch correction, reweighted, switched to
another surrogate, or in the `where` of a penalty. The first of these counts. Importance weights
between the bounds of a mismatch correction touch no token, and neither does a penalty on all
tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Expr, Number, Rule
from rlobj.objectives.rules.nodes import When
from rlobj.objectives.surrogates import Surrogate, Switch

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


def cases_of(
    frame: Frame, number: Number, where: Tensor, path: Rule | None = None
) -> Iterator[tuple[str, Tensor, Number]]:
    """The cases of a chain of `when`: the condition, its tokens, and the number they get.

    The text of a number without `when` is the number's.
    """
    passed: Rule | None = None
    while isinstance(number, When):
        held = frame.holds(number.rule)
        condition = number.rule if path is None else path & number.rule
        yield from cases_of(frame, number.then, where & held, condition)
        where = where & ~held
        passed = number.rule if passed is None else passed | number.rule
        number = number.otherwise
    if passed is not None:
        path = ~passed if path is None else path & ~passed
    yield (number if path is None else path).written_out(), where, number


def switches_of(frame: Frame, surrogate: Surrogate, where: Tensor) -> Iterator[tuple[Rule, Tensor]]:
    """The rule of a Switch and of those inside it, each with its tokens."""
    if isinstance(surrogate, Switch):
        held = frame.rule(surrogate.rule)
        yield surrogate.rule, where & held
        yield from switches_of(frame, surrogate.then, where & held)
        yield from switches_of(frame, surrogate.otherwise, where & ~held)
