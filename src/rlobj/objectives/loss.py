"""The loss of a micro-batch, which reads a plan: what equations read, and what is measured."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.base.primitives import Primitive
from rlobj.objectives import functional
from rlobj.objectives.plan import Plan
from rlobj.objectives.surrogates import Surrogate, Terms
from rlobj.objectives.tokens import TokenBatch


def terms_of(table: TokenBatch, plan: Plan) -> Terms:
    """The terms of a micro-batch and its plan.

    Log-probs of undecided responses are 0. All others that are not finite are NaN: −inf would be
    within the bounds of some surrogates and out of those of others.
    """
    logprobs = torch.where(table.logprobs.isfinite(), table.logprobs, torch.nan)
    logprobs = torch.where(table.decided, logprobs, 0.0)
    return Terms(table, logprobs, plan.advantages[0], plan.values[0])


def check_finite(table: TokenBatch, loss: Tensor, *columns: str) -> None:
    """Check the loss of a micro-batch, which reads log-probs and these columns.

    Raises:
        BatchError: it is not finite; names the first row of the table that is not.
    """
    if bool(loss.isfinite()):
        return
    for name in ("logprobs", "entropy", *columns):
        if name in table.columns or getattr(table, name, None) is not None:
            table.finite(name, "the loss")
    raise BatchError(f"the loss is {loss.item()} at finite log-probs; set max_log_ratio or max_gap")


@dataclass(frozen=True)
class LossOutput:
    """One micro-batch's share of the loss.

    Attributes:
        loss: scalar with a graph, also if all weights are 0.
        weights: m·ω/Z_t of each token, [N].
        metrics: contributions that add up over micro-batches and ranks.
        extremes: values whose maximum is taken over micro-batches and ranks.
    """

    loss: Tensor
    weights: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    extremes: dict[str, Tensor] = field(default_factory=dict)


def weighted_sum(weights: Tensor, values: Tensor, term: Primitive) -> Tensor:
    """Σ weights·values of a term; a value with weight 0 is ignored, also if it is not finite.

    Raises:
        BatchError: the term has no value for each token.
    """
    values = term.checked(values, weights.shape, type(term).__call__)
    return (weights * torch.where(weights != 0, values, torch.zeros_like(values))).sum()


def loss_metrics(
    surrogate: Surrogate, terms: Terms, plan: Plan, weights: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The metrics and extremes of one micro-batch, for its LossOutput.

    Args:
        surrogate: S.
        terms: the micro-batch.
        plan: the plan of the update.
        weights: m·ω/Z_t, [N].
    """
    decided, ratio = terms.table.decided, terms.token_ratio.detach()
    above, below = surrogate.clipped_sides(terms)
    clipped = {
        "objective/clip_fraction": above | below,
        "clip/high_fraction": above,
        "clip/low_fraction": below,
    }
    acting = weights != 0
    kl = functional.k3(terms.column("old_logprobs"), terms.logprobs.detach())
    tokens = max(plan.tokens, 1)
    means = {
        **{
            name: (where & acting).sum().double() / max(plan.kept, 1)
            for name, where in clipped.items()
        },
        "policy/kl_old": torch.where(decided, kl, 0.0).sum() / tokens,
        "policy/ratio": torch.where(decided, ratio, 0.0).sum() / tokens,
    }
    if terms.table.entropy is not None:
        entropy = terms.table.entropy.detach()
        means["policy/entropy"] = torch.where(decided, entropy, 0.0).sum() / tokens
    largest = torch.where(decided, ratio, 0.0).max() if len(ratio) else ratio.new_zeros(())
    return means, {"policy/ratio_max": largest}
