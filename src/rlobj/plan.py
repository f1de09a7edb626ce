"""What the stages of an objective hand on: a Plan for an update, a LossOutput for a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rlobj import functional
from rlobj.surrogates import Surrogate, Terms

__all__ = ["LossOutput", "Needs", "Plan", "measure", "weighted"]


@dataclass(frozen=True)
class Needs:
    """The TokenBatch columns that each stage reads."""

    observe: frozenset[str]
    plan: frozenset[str]
    loss: frozenset[str]


@dataclass(frozen=True)
class Plan:
    """What `plan` froze for one optimizer update, per table.

    Attributes:
        weights: m·ω/Z_t, [N] per table; the policy loss is −Σ weights·S.
        penalties: c_k/Z_k on each penalty's tokens, [N] per table and penalty.
        advantages: A, [N] per table.
        masks: the surrogate's own rules by their text, bool [N], per table.
        empty: nothing in the update counts, on any rank; the trainer skips it.
        tokens: tokens of decided responses over all ranks.
        kept: tokens that the objective keeps over all ranks.
        metrics: global facts of the update (fractions, controllers' values).
    """

    weights: tuple[Tensor, ...]
    penalties: tuple[tuple[Tensor, ...], ...]
    advantages: tuple[Tensor, ...]
    masks: tuple[dict[str, Tensor], ...]
    empty: bool
    tokens: int
    kept: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class LossOutput:
    """One micro-batch's share of the loss.

    Attributes:
        loss: scalar with a graph, also where nothing counts.
        weights: m·ω/Z_t of each token, [N].
        metrics: contributions that add up over micro-batches and ranks.
        extremes: values of which the largest over micro-batches and ranks counts.
    """

    loss: Tensor
    weights: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    extremes: dict[str, Tensor] = field(default_factory=dict)


def weighted(weights: Tensor, values: Tensor) -> Tensor:
    """Σ weights·values, where a weight of 0 silences even a value that is not finite."""
    return (weights * torch.where(weights != 0, values, torch.zeros_like(values))).sum()


@torch.no_grad()
def measure(
    surrogate: Surrogate, terms: Terms, plan: Plan, weights: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """One micro-batch's contributions to means over the update, and its extremes.

    Args:
        surrogate: the objective's.
        terms: what it read.
        plan: the update's.
        weights: m·ω/Z_t, [N].
    """
    decided, ratio = terms.table.decided, terms.token_ratio.detach()
    clipped = (surrogate.clipped(terms) & (weights != 0)).sum().double()
    kl = functional.k3(terms.column("old_logprobs"), terms.logprobs.detach())
    tokens = max(plan.tokens, 1)
    means = {
        "objective/clip_fraction": clipped / max(plan.kept, 1),
        "policy/kl_old": torch.where(decided, kl, 0.0).sum() / tokens,
        "policy/ratio": torch.where(decided, ratio, 0.0).sum() / tokens,
    }
    if terms.table.entropy is not None:
        entropy = terms.table.entropy.detach()
        means["policy/entropy"] = torch.where(decided, entropy, 0.0).sum() / tokens
    largest = ratio[decided].max() if bool(decided.any()) else ratio.new_zeros(())
    return means, {"policy/ratio_max": largest}
