"""The results of an objective's stages: a Plan for an update, a LossOutput for a micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rlobj.base.errors import BatchError
from rlobj.objectives import functional, statistics
from rlobj.objectives.divisors import Divisor
from rlobj.objectives.frame import Frame
from rlobj.objectives.rules import Column
from rlobj.objectives.surrogates import Surrogate, Terms
from rlobj.objectives.tokens import TokenBatch

__all__ = ["LossOutput", "Plan", "loss_metrics", "token_shares", "weighted_sum"]


@dataclass(frozen=True)
class Plan:
    """The masks, weights and divisors of one optimizer update.

    Attributes:
        weights: m·ω/Z_t, [N] for each table; the policy loss is −Σ weights·S.
        penalties: c_k/Z_k on the penalty's tokens, 0 elsewhere, [N] for each table and penalty.
        advantages: A, [N] for each table.
        masks: the values of the surrogate's rules, bool [N] for each table, by the rule's text.
        empty: all weights of the update are 0, on all ranks. The trainer skips such an update.
        tokens: number of tokens of decided responses, over all ranks.
        kept: number of tokens that the objective keeps, over all ranks.
        metrics: metrics of the whole update: fractions of selected tokens, controllers' values.
    """

    weights: tuple[Tensor, ...]
    penalties: tuple[tuple[Tensor, ...], ...]
    advantages: tuple[Tensor, ...]
    masks: tuple[dict[str, Tensor], ...]
    empty: bool
    tokens: int
    kept: int
    metrics: dict[str, float]

    @classmethod
    def freeze(
        cls,
        frame: Frame,
        sizes: Sequence[int],
        kept: Tensor,
        weights: Tensor,
        penalties: Sequence[Tensor],
        masks: Mapping[str, Tensor],
        controllers: Iterable[str] = (),
    ) -> Plan:
        """A plan from the values of all tokens of this rank.

        Args:
            frame: the tokens of the update.
            sizes: number of tokens of each table.
            kept: the tokens that the objective keeps, bool [N].
            weights: m·ω/Z_t, [N].
            penalties: c_k/Z_k, [N] for each penalty.
            masks: bool [N] by the rule's text.
            controllers: names of the controllers whose values are metrics.
        """

        def cut(values: Tensor) -> tuple[Tensor, ...]:  # [N] -> one [N] for each table
            return values.split(list(sizes)) if sizes else ()

        nonzero = torch.stack([values != 0 for values in (weights, *penalties)]).any(0)
        tokens, kept_tokens = (statistics.count(x, frame.comm) for x in (frame.decided, kept))
        metrics = {
            "objective/kept_fraction": kept_tokens / tokens if tokens else 0.0,
            "objective/dropped_tokens": float(tokens - kept_tokens),
        }
        for name in controllers:
            metrics[f"controller/{name}"] = float(frame.state[name]["value"])
        for text, (selected, population) in frame.selections.items():
            metrics[f"selected/{text}"] = selected / population if population else 0.0
        parts = {rule: cut(mask) for rule, mask in masks.items()}
        return cls(
            weights=cut(weights),
            penalties=tuple(zip(*map(cut, penalties), strict=True)) or ((),) * len(sizes),
            advantages=cut(frame.number(Column("advantage"))),
            masks=tuple({rule: parts[rule][i] for rule in parts} for i in range(len(sizes))),
            empty=statistics.count(nonzero, frame.comm) == 0,
            tokens=tokens,
            kept=kept_tokens,
            metrics=metrics,
        )

    def table_index(self, table: TokenBatch, index: int | None = None) -> int:
        """The position of a table in this plan: `index` if given, else the table's own, else 0.

        Raises:
            BatchError: the plan has no table of this size at this position.
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
        """The plan of some rows of one table, as a plan of one table.

        Divisors and counts stay those of the whole update. So the losses of parts add up to the
        loss of the whole, if each row is in one part.

        Args:
            rows: int [M], for example `TokenBatch.rows` of some responses.
            index: the position of the table in this plan.
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
        loss: scalar with a graph, also if all weights are 0.
        weights: m·ω/Z_t of each token, [N].
        metrics: contributions that add up over micro-batches and ranks.
        extremes: values whose maximum is taken over micro-batches and ranks.
    """

    loss: Tensor
    weights: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)
    extremes: dict[str, Tensor] = field(default_factory=dict)


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
    return (scale / z.to(frame.dtype)).masked_fill_(~(chosen & (z > 0)), 0.0)


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ weights·values; a value with weight 0 is ignored, also if it is not finite."""
    return (weights * torch.where(weights != 0, values, torch.zeros_like(values))).sum()


@torch.no_grad()
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
