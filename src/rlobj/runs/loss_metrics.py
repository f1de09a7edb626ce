"""The metrics of an update's loss and of its sampler, and those of a step from its updates'."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from rlobj.objectives import functional
from rlobj.objectives.loss import LossOutput
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import EFFECTS, Plan
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import largest
from rlobj.runs.observed import POLICY

PREDICTED, MEASURED = "entropy/predicted_change", "entropy/measured_change"
_CLIPPED = ("objective/clip_fraction", "clip/high_fraction", "clip/low_fraction")
_SUMS = ("train/skipped_updates", "value/skipped_updates", "sampler/nan_tokens")
_SUMS += ("tokens/touched", "tokens/unscored")
_SUMS += tuple(f"tokens/{effect}" for effect in EFFECTS)
_SUMS += ("spurious/tokens", "spurious/caught", "spurious/dropped", PREDICTED)
_MEANS = ("policy/entropy", "policy/kl_old", "policy/ratio")


@dataclass(frozen=True)
class MicroBatchResult:
    """What the loss of one micro-batch measured.

    Attributes:
        loss: its share of the loss.
        metrics: contributions that add up over micro-batches and ranks.
        extremes: values of which the largest counts.
        tokens: tokens of decided responses in it, int [].
        rows: the micro-batch's rows in the mini-batch, int [M].
        scores: the policy's columns, [M] each.
        sampler_logprobs: the sampler's, [M].
    """

    loss: Tensor
    metrics: dict[str, Tensor]
    extremes: dict[str, Tensor]
    tokens: Tensor
    rows: Tensor
    scores: dict[str, Tensor]
    sampler_logprobs: Any

    @classmethod
    def of(cls, table: TokenBatch, output: LossOutput, rows: Tensor) -> Self:
        """What the loss of a table measured, without its graph."""
        columns = {name: getattr(table, name) for name in POLICY}
        return cls(
            loss=output.loss.detach(),
            metrics=output.metrics,
            extremes=output.extremes,
            tokens=table.decided.sum(),
            rows=rows,
            scores={name: score.detach() for name, score in columns.items() if score is not None},
            sampler_logprobs=table.sampler_logprobs,
        )


def combine(
    measured: Sequence[MicroBatchResult],
    objective: Objective,
    plan: Plan,
    complete: bool,
    comm: Comm,
) -> dict[str, float]:
    """The metrics of an update: sums and extremes over micro-batches and ranks.

    Args:
        measured: of this rank's micro-batches.
        objective: names the losses, also on a rank without micro-batches.
        plan: of the update.
        complete: the micro-batches hold all tokens of the update. Otherwise policy/... are means
            over the tokens they hold, and absent if they hold none.
        comm: the process group.
    """
    losses = ["loss/policy", *(f"loss/{penalty.name}" for penalty in objective.penalties)]
    names = [*dict.fromkeys(losses), *_CLIPPED, *_MEANS, "loss/total"]
    sums = torch.zeros(len(names) + 1, dtype=torch.float64)
    for result in measured:
        values = {**result.metrics, "loss/total": result.loss}
        column = [values.get(name, result.loss * 0).double().cpu() for name in names]
        sums += torch.stack([*column, result.tokens.double().cpu()])
    *values, tokens = comm.sum(sums).tolist()
    combined = dict(zip(names, values, strict=True))
    ratios = [float(result.extremes["policy/ratio_max"]) for result in measured]
    combined["policy/ratio_max"] = largest(max(ratios, default=0.0), comm)
    if complete:
        return combined
    if not tokens:
        return {name: combined[name] for name in names if name not in _MEANS}
    return combined | {name: combined[name] * (plan.tokens / tokens) for name in _MEANS}


def average(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A step's metrics from those of its updates: means; sums of `_SUMS`; largest of extremes."""
    names = dict.fromkeys(name for metrics in updates for name in metrics)
    return {name: _average(name, updates) for name in names}


def _average(name: str, updates: Sequence[Mapping[str, float]]) -> float:
    values = [metrics[name] for metrics in updates if name in metrics]
    if name in _SUMS:
        return sum(values)
    return max(values) if name.endswith("_max") else sum(values) / len(values)


def sampler_gap(trainer: Tensor, sampler: Tensor, comm: Comm) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's, over all ranks.

    Tokens whose log-prob the sampler does not know (NaN) are left out. vLLM has such tokens where
    the entropy is nearly 0.

    Args:
        trainer: log π of the sampled tokens, by the trainer [N].
        sampler: by the sampler [N].
        comm: the process group.

    Returns:
        sampler/kl: mean of k3, an estimate of KL(sampler ‖ trainer), nats;
        sampler/ratio_max: largest π_trainer/π_sampler;
        sampler/logprob_gap: mean |Δ log-prob|, nats; NaN if the sampler knows none;
        sampler/nan_tokens: number of tokens that are left out.
    """
    scored = ~sampler.isnan()
    trainer, sampler = trainer.detach()[scored], sampler[scored]
    ratio = functional.log_ratio(trainer, sampler).exp()
    gap = (trainer - sampler).abs()
    k3 = functional.k3(sampler, trainer)
    sums = torch.stack([column.double().sum() for column in (k3, gap, scored, ~scored)])
    kl, total, count, unknown = comm.sum(sums.cpu()).tolist()
    none = math.nan if unknown else 0.0
    return {
        "sampler/kl": kl / count if count else none,
        "sampler/ratio_max": largest(float(ratio.max()) if len(ratio) else 1.0, comm),
        "sampler/logprob_gap": total / count if count else none,
        "sampler/nan_tokens": unknown,
    }
