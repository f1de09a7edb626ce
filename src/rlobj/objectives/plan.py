"""Results of an objective's stages: a Plan for an update, a LossOutput for a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import functional
from rlobj.objectives.surrogates import Surrogate, Terms
from rlobj.objectives.tokens import TokenBatch

__all__ = [
    "LossOutput",
    "Needs",
    "Plan",
    "measure",
    "weighted",
]


@dataclass(frozen=True)
class Needs:
    """The TokenBatch columns that each stage of an objective reads."""

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

    def table_index(self, table: TokenBatch, index: int | None = None) -> int:
        """A table's place in the plan: as given, else the table's own, else 0.

        Raises:
            BatchError: the plan was not made for such a table.
        """
        index = (table.index or 0) if index is None else index
        if not 0 <= index < len(self.weights) or len(self.weights[index]) != len(table):
            sizes = [len(weights) for weights in self.weights]
            raise BatchError(
                f"table {index} has {len(table)} tokens; the plan was made for tables of {sizes} "
                "tokens. Pass loss(table, plan, index=...)"
            )
        return index

    def part(self, rows: Tensor, index: int = 0) -> Plan:
        """What the plan says of some rows of one of its tables, as a plan of one table.

        Divisors and counts stay those of the whole update: the losses of parts that hold each row
        once add up to the loss of the whole.

        Args:
            rows: int [M], such as `TokenBatch.rows` of some responses.
            index: the table's place in this plan.
        """
        return replace(
            self,
            weights=(self.weights[index][rows],),
            penalties=(tuple(share[rows] for share in self.penalties[index]),),
            advantages=(self.advantages[index][rows],),
            masks=({rule: mask[rows] for rule, mask in self.masks[index].items()},),
        )


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
