"""The weights of an update, from a frame: ω and m·ω/Z of the surrogate, c_k/Z_k of a penalty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from rlobj.base.primitives import Primitive
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.rules import Number, Rule
from rlobj.objectives.rules.nodes import Column
from rlobj.objectives.settings import bind, expressions


def token_weights(
    frame: Frame, weight: Number | None, mismatch: Mismatch | None, where: Tensor
) -> Tensor:
    """ω, the weight times the mismatch factor, [N].

    Args:
        frame: the tokens of the update.
        weight: the objective's weight.
        mismatch: the correction between sampler and trainer.
        where: the tokens whose weight must be finite, bool [N].
    """
    omega = torch.ones(len(frame.table), dtype=frame.dtype, device=frame.device)
    if weight is not None:
        omega = omega * frame.number(weight, "reweight", where)
    if mismatch is not None:
        gap = frame.number(Column("sampler_gap"))
        omega = omega * with_values(frame, mismatch)(gap, frame.table)
    return omega


def with_values(frame: Frame, mismatch: Mismatch) -> Mismatch:
    """The correction with the values of its expressions."""
    return bind(mismatch, fixed_values(frame, {"mismatch": mismatch}))


def penalty_weights(
    frame: Frame, penalty: Penalty, objective_divisor: Divisor, phase: Rule | None
) -> Tensor:
    """c_k/Z_k on the penalty's tokens of this phase, 0 elsewhere, [N].

    Z_k counts the tokens of all phases, as in Lopti's release.

    Args:
        frame: the tokens of the update.
        penalty: P_k.
        objective_divisor: Z; over all tokens it is the penalty's divisor by default.
        phase: the tokens of this phase; None = all.
    """
    divisor = penalty.divisor or objective_divisor.model_copy(update={"over": "all"})
    chosen = frame.rule(penalty.where)
    counted = chosen if divisor.over == "kept" else frame.decided
    in_phase = chosen & frame.rule(phase)
    coefficient = frame.number(penalty.coefficient, f"{penalty.kind}.coefficient", in_phase)
    return token_shares(frame, divisor, counted, in_phase, coefficient)


def fixed_values(
    frame: Frame, primitives: Mapping[str, Primitive], rules: Iterable[Rule] = ()
) -> dict[str, Tensor]:
    """The values of rules, bool [N], and of expression-valued settings, [N], by their text.

    Args:
        frame: the tokens of the update.
        primitives: the owners of the settings, each with its name for error messages.
        rules: the rules that surrogates read.
    """
    values = {str(rule): frame.rule(rule) for rule in rules}
    for who, primitive in primitives.items():
        for path, expression, bounds in expressions(primitive):
            numbers = frame.number(expression, f"{who}.{path}")
            frame.refuse(
                frame.decided & bounds.outside(numbers),
                f"{who}.{path} '{expression}' is not {bounds}",
            )
            values[str(expression)] = numbers.masked_fill(~frame.decided, 1.0)
    return values


def token_shares(
    frame: Frame, divisor: Divisor, counted: Tensor, chosen: Tensor, scale: Tensor
) -> Tensor:
    """scale/Z_t on the chosen tokens, 0 elsewhere, [N].

    Args:
        frame: the tokens of the update.
        divisor: Z.
        counted: the tokens that Z counts, bool [N].
        chosen: the tokens that get a share, bool [N].
        scale: the numerator, [N].
    """
    z = divisor(counted, frame.table, frame.comm)
    z = divisor.checked(z, counted.shape, type(divisor).__call__)
    return (scale / z.to(frame.dtype)).masked_fill_(~(chosen & (z > 0)), 0.0)
