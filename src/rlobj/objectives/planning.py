"""The parts of `Objective.plan` and `Objective.loss`."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.base.primitive import Primitive
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.mismatch import Mismatch
from rlobj.objectives.penalties import Penalty
from rlobj.objectives.plan import Plan, token_shares
from rlobj.objectives.rules import Column, Number, Rule
from rlobj.objectives.settings import bind, expressions
from rlobj.objectives.surrogates import Terms
from rlobj.objectives.tokens import TokenBatch


def advantages(frame: Frame, shape: Number | None) -> Tensor:
    """The advantages that surrogates and penalties read, [N]."""
    if shape is None:
        return frame.number(Column("advantage"))
    return frame.number(shape, "shape")


def omega(frame: Frame, weight: Number | None, mismatch: Mismatch | None, where: Tensor) -> Tensor:
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
        mismatch = bind(mismatch, fixed_values(frame, {"mismatch": mismatch}))
        omega = omega * mismatch(frame.number(Column("sampler_gap")), frame.table)
    return omega


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
    frame: Frame, primitives: dict[str, Primitive], rules: Iterable[Rule] = ()
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


def terms(table: TokenBatch, plan: Plan) -> Terms:
    """The terms of a micro-batch and its plan.

    Log-probs of undecided responses are 0. All others that are not finite are NaN: −inf would be
    within the bounds of some surrogates and out of those of others.
    """
    logprobs = torch.where(table.logprobs.isfinite(), table.logprobs, torch.nan)
    logprobs = torch.where(table.decided, logprobs, 0.0)
    return Terms(table, logprobs, plan.advantages[0], plan.values[0])


def check_finite(table: TokenBatch, loss: Tensor) -> None:
    """Check the loss of a micro-batch.

    Raises:
        BatchError: it is not finite; names the first row of the table that is not.
    """
    if bool(loss.isfinite()):
        return
    for name in ("logprobs", "entropy"):
        if getattr(table, name) is not None:
            table.finite(name, "the loss")
    raise BatchError(
        f"the loss is {loss.item()}, although all log-probs are finite. The surrogate or a penalty "
        "is infinite at some token; see max_log_ratio and max_gap"
    )
