"""The metrics of an update: of its loss, of its sampler, and of its tokens.

Those of the tokens say who carries the gradient, and what it does to the entropy. They are over the
tokens of decided responses that are in the update's phase, on all ranks. They are the same to
the bit for any number of ranks and any order of the tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlobj.objectives import functional, statistics
from rlobj.objectives.objective import Objective
from rlobj.objectives.plan import LossOutput, Plan
from rlobj.objectives.statistics import Comm
from rlobj.objectives.tokens import TokenBatch
from rlobj.ranks import largest
from rlobj.records.observed import POLICY, ObservedUpdate

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
TOPS = (0.0001, 0.001, 0.01)
QUADRANTS = ("positive_likely", "positive_surprising", "negative_likely", "negative_surprising")
DECADES = 6

_FEW = 20
"""Tokens below which bias and slope are not computed."""
PREDICTED, MEASURED = "entropy/predicted_change", "entropy/measured_change"
_CLIPPED = ("objective/clip_fraction", "clip/high_fraction", "clip/low_fraction")
_SUMS = (
    *("train/skipped_updates", "sampler/nan_tokens", "tokens/dropped", "tokens/unscored"),
    *("spurious/tokens", "spurious/caught", "spurious/dropped"),
    PREDICTED,
)
_MEANS = ("policy/entropy", "policy/kl_old", "policy/ratio")


@torch.no_grad()
def token_metrics(observed: ObservedUpdate, comm: Comm) -> dict[str, float]:
    """The metrics of one update; shares, means and quantiles of no tokens are absent.

    Args:
        observed: of this rank.
        comm: the process group.
    """
    own = _Tokens.of(observed)
    tokens, scored, weighed, *others = comm.sum(own.counts).tolist()
    (above, below, left_out, judged, wrong, dropped, caught), decades = others[:7], others[7:]
    tops = [math.ceil(share * weighed) for share in TOPS]
    levels = [math.ceil(q * scored) for q in QUANTILES]
    found = _order_statistics(
        [(own.norms, [weighed - k + 1 for k in tops]), (own.entropy, levels)], comm
    )
    cuts, quantiles = found[: len(tops)], found[len(tops) :]
    summed = [
        (own.norms, own.quadrants),
        (own.advantages, 4 + (own.advantages < 0).long()),
        (own.entropy_change, torch.full_like(own.quadrants, 6)),
    ]
    for unit, cut in enumerate(cuts, 7):
        excess = own.norms[own.norms > cut].double() - cut
        summed.append((excess, torch.full_like(excess, unit, dtype=torch.int64)))
    values, units = (torch.cat(parts) for parts in zip(*summed, strict=True))
    sums = statistics.exact_sum_by(values, units, 10, comm).tolist()
    carried, (up, down, predicted), over = sums[:4], sums[4:7], sums[7:]
    shares: dict[str, float] = dict(zip(QUADRANTS, carried, strict=True))
    for share, k, cut, rest in zip(TOPS, tops, cuts, over, strict=True):
        shares[f"top_{100 * share:g}pct"] = rest + k * cut  # Σ of the k largest
    fractions = {
        **{f"gradient/{name}": (share, sum(carried)) for name, share in shares.items()},
        **{f"prob/decade_{i}": (count, scored) for i, count in enumerate(decades)},
        "advantage/positive_share": (above, tokens),
        "advantage/negative_share": (below, tokens),
        "advantage/positive_mean": (up, above),
        "advantage/negative_mean": (down, below),
    }
    spurious = {
        "spurious/tokens": float(wrong),
        "spurious/share": wrong / max(tokens, 1),
        "spurious/caught": float(caught),
        "spurious/dropped": float(dropped),
    }
    named = zip(QUANTILES, quantiles, strict=True)
    return {
        **{name: value / total for name, (value, total) in fractions.items() if total},
        **({f"entropy/q{100 * q:02.0f}": value for q, value in named} if scored else {}),
        **({"entropy/predicted_change": predicted} if sum(carried) else {}),
        "tokens/dropped": float(left_out),
        "tokens/unscored": float(tokens - scored),
        **(spurious if judged else {}),
    }


@dataclass(frozen=True)
class _Tokens:
    """What is summed and ordered of one rank's tokens.

    Attributes:
        counts: numbers of tokens: all, scored, with a norm, A > 0, A < 0, dropped; judged,
            spurious, judged and dropped, spurious and dropped; and scored tokens by decade of
            π, int [16].
        advantages: A of all n tokens, [n].
        entropy: H of the scored tokens, nats.
        norms: |m·ω·A/Z|·sqrt(1 − 2π + Σ π²), [m]; 0 also for a token without m·ω·A that was not
            scored. Others that were not scored are left out.
        quadrants: the place in QUADRANTS of these tokens, int [m].
        entropy_change: −(m·ω·A/Z)·s of these tokens, [m].
    """

    counts: Tensor
    advantages: Tensor
    entropy: Tensor
    norms: Tensor
    quadrants: Tensor
    entropy_change: Tensor

    @classmethod
    def of(cls, observed: ObservedUpdate) -> _Tokens:
        clauses = observed.plan.clauses
        assert clauses is not None
        rows = clauses.in_phase.nonzero()[:, 0]
        columns = (getattr(observed, name).detach()[rows].double() for name in POLICY)
        logprobs, entropy, collision, sensitivity = columns
        advantages = observed.plan.advantages[0][rows].double()
        weights = observed.plan.weights[0][rows].double() * advantages
        # In float32, the place of a token in a vector does not change the last bit of its norm.
        norms = functional.gradient_norm(logprobs, collision, weights).float()
        norms = norms.masked_fill(weights == 0, 0.0)
        change = (-weights * sensitivity).masked_fill(weights == 0, 0.0)
        scored, known = ((~x.isnan()).nonzero()[:, 0] for x in (logprobs, norms))
        decades = (logprobs[scored] / -math.log(10)).floor().clamp(0, DECADES - 1).long()
        marks = observed.spurious[rows]
        judged, wrong, dropped = ~marks.isnan(), marks == 1, clauses.touched("dropped")[rows]
        below = advantages < 0
        masks = (advantages > 0, below, dropped, judged, wrong, judged & dropped, wrong & dropped)
        sizes = torch.tensor([len(rows), len(scored), len(known)], device=rows.device)
        counts = (sizes, torch.stack(masks).sum(1), torch.bincount(decades, minlength=DECADES))
        return cls(
            counts=torch.cat(counts),
            advantages=advantages,
            entropy=entropy[scored].float(),
            norms=norms[known],
            quadrants=(2 * below + (sensitivity < 0).long())[known],
            entropy_change=change[known],
        )


def _order_statistics(columns: Sequence[tuple[Tensor, Sequence[int]]], comm: Comm) -> list[float]:
    """The k-th smallest values of float32 columns over all ranks, one after another.

    Args:
        columns: the values, and each k from 1.
        comm: the process group.
    """
    if comm.size == 1:  # sorting once is faster than counting digits for each k
        ordered = [(values.sort().values, ranks) for values, ranks in columns]
        return [float(x[k - 1]) if len(x) else 0.0 for x, ranks in ordered for k in ranks]
    keys = [(statistics.order_keys(values), ranks) for values, ranks in columns]
    every = [column for column, ranks in keys for _ in ranks]
    unit = torch.cat([torch.full_like(x, i, dtype=torch.int64) for i, x in enumerate(every)])
    ranks = torch.tensor([k for _, ranks in columns for k in ranks], device=unit.device)
    found = statistics.kth_smallest_by(torch.cat(every), ranks, unit, comm)
    return statistics.from_keys(found.int()).tolist()


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
    def of(cls, table: TokenBatch, output: LossOutput, rows: Tensor) -> MicroBatchResult:
        """What the loss of a table measured, without its graph."""
        columns = {name: getattr(table, name) for name in POLICY}
        return cls(
            loss=output.loss.detach(),
            metrics=output.metrics,
            extremes=output.extremes,
            tokens=table.decided.sum(),
            rows=rows,
            scores={name: x.detach() for name, x in columns.items() if x is not None},
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
    for each in measured:
        values = {**each.metrics, "loss/total": each.loss}
        column = [values.get(name, each.loss * 0).double().cpu() for name in names]
        sums += torch.stack([*column, each.tokens.double().cpu()])
    *values, tokens = comm.sum(sums).tolist()
    combined = dict(zip(names, values, strict=True))
    ratios = [float(each.extremes["policy/ratio_max"]) for each in measured]
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


def sampler_gap(
    trainer: Tensor, sampler: Tensor, comm: Comm, entropy: Tensor | None = None
) -> dict[str, float]:
    """How far the sampler's log-probs are from the trainer's, over all ranks.

    Tokens whose log-prob the sampler does not know (NaN) are left out. vLLM has such tokens where
    the entropy is nearly 0.

    Args:
        trainer: log π of the sampled tokens, by the trainer [N].
        sampler: by the sampler [N].
        comm: the process group.
        entropy: of the policy at these tokens, for the bias and the slope [N].

    Returns:
        sampler/kl: mean of k3, an estimate of KL(sampler ‖ trainer), nats;
        sampler/ratio_max: largest π_trainer/π_sampler;
        sampler/logprob_gap: mean |Δ log-prob|, nats; NaN if the sampler knows none;
        sampler/nan_tokens: number of tokens that are left out;
        sampler/bias, sampler/slope, and their errors as `_fit` returns them.
    """
    known = ~sampler.isnan()
    surprise = None if entropy is None else (trainer + entropy).detach()[known]
    trainer, sampler = trainer.detach()[known], sampler[known]
    ratio = functional.log_ratio(trainer, sampler).exp()
    gap = (trainer - sampler).abs()
    k3 = functional.k3(sampler, trainer)
    sums = torch.stack([column.double().sum() for column in (k3, gap, known, ~known)])
    kl, total, count, unknown = comm.sum(sums.cpu()).tolist()
    none = math.nan if unknown else 0.0
    found = {
        "sampler/kl": kl / count if count else none,
        "sampler/ratio_max": largest(float(ratio.max()) if len(ratio) else 1.0, comm),
        "sampler/logprob_gap": total / count if count else none,
        "sampler/nan_tokens": unknown,
    }
    return found if surprise is None else found | _fit(sampler - trainer, surprise, comm)


def _fit(d: Tensor, u: Tensor, comm: Comm) -> dict[str, float]:
    """Least squares of d = a + b·u + e over all ranks.

        bias = mean d             error² = Σ (d − bias)² / n²
        slope = b = S_ud / S_uu   error = √(Σ (u − ū)² e²) / S_uu + Σ e² / S_uu

    The last term is there because the trainer's rounding is in d and in u: alone, it has slope −1.
    """
    scored = ~u.isnan()
    d, u = d[scored].double(), u[scored].double()

    def sums(*columns: Tensor) -> list[float]:
        return comm.sum(torch.stack([column.sum() for column in columns]).cpu()).tolist()

    n, total_d, total_u = sums(torch.ones_like(d), d, u)
    if n < _FEW:
        return {}
    bias = total_d / n
    x, y = u - total_u / n, d - bias
    xx, xy, yy = sums(x * x, x * y, y * y)
    found = {"sampler/bias": bias, "sampler/bias_error": math.sqrt(yy) / n}
    if not xx:
        return found
    e = y - x * (xy / xx)
    spread, rest = sums((x * e).square(), e * e)
    error = (math.sqrt(spread) + rest) / xx
    return {**found, "sampler/slope": xy / xx, "sampler/slope_error": error}
