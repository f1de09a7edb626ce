"""The metrics of an update's sampler: how far its log-probs are from the policy's."""

import math

import torch
from torch import Tensor

from rlobj.objectives import functional
from rlobj.objectives.statistics import Comm
from rlobj.ranks import largest

_FEW = 20
"""Tokens below which bias and slope are not computed."""


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
    scored = ~sampler.isnan()
    surprise = None if entropy is None else (trainer + entropy).detach()[scored]
    trainer, sampler = trainer.detach()[scored], sampler[scored]
    ratio = functional.log_ratio(trainer, sampler).exp()
    gap = (trainer - sampler).abs()
    k3 = functional.k3(sampler, trainer)
    sums = torch.stack([column.double().sum() for column in (k3, gap, scored, ~scored)])
    kl, total, count, unknown = comm.sum(sums.cpu()).tolist()
    none = math.nan if unknown else 0.0
    metrics = {
        "sampler/kl": kl / count if count else none,
        "sampler/ratio_max": largest(float(ratio.max()) if len(ratio) else 1.0, comm),
        "sampler/logprob_gap": total / count if count else none,
        "sampler/nan_tokens": unknown,
    }
    return metrics if surprise is None else metrics | _fit(sampler - trainer, surprise, comm)


def _fit(d: Tensor, u: Tensor, comm: Comm) -> dict[str, float]:
    """Least squares of d = a + b·u + e over all ranks.

        bias = mean d             error² = Σ (d − bias)² / n²
        slope = b = S_ud / S_uu   error = √(Σ (u − ū)² e²) / S_uu + Σ e² / S_uu

    In the code, x = u − ū and y = d − mean d.
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
    metrics = {"sampler/bias": bias, "sampler/bias_error": math.sqrt(yy) / n}
    if not xx:
        return metrics
    e = y - x * (xy / xx)
    spread, rest = sums((x * e).square(), e * e)
    error = (math.sqrt(spread) + rest) / xx
    return {**metrics, "sampler/slope": xy / xx, "sampler/slope_error": error}
