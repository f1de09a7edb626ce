"""Ratios, estimators of the KL and the norm of a token's gradient, as functions of tensors.

The notation is that of `surrogates`. Limits are numbers, or tensors with one number per token, [N].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

Real = float | Tensor


MAX_LOG_RATIO = 20.0
"""l − l0 is clamped to ±20 nats before `exp` unless a setting says otherwise, as in verl. Releases
differ: TRL, AR-Lopti, Lp-Reg and KL-Cov clamp nothing, verl's GSPO only the mean over the response,
to at most 10. Presets pin what their release does."""


def bounded(exponent: Tensor, limit: Real | None, below: bool = True) -> Tensor:
    """The exponent clamped to ±limit nats, or with below=False to at most `limit`.

    None clamps only what `exp` cannot represent: in float32 an exponent above 88. So `exp` of it is
    always finite, and its product with an advantage of 0 is 0.
    """
    if limit is not None:
        exponent = exponent.clamp(max=limit)
        exponent = exponent.clamp(min=-limit) if below else exponent
    return exponent.clamp(max=int(math.log(torch.finfo(exponent.dtype).max)))


def log_ratio(logprobs: Tensor, reference: Tensor, limit: Real | None = MAX_LOG_RATIO) -> Tensor:
    """l − l_reference clamped to ±limit nats, [N]; None = no clamp, see `bounded`."""
    return bounded(logprobs - reference, limit)


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k1 = l − l_ref, unbiased estimate of KL(π ‖ π_ref), [N]. Source: Schulman 2020, k1."""
    return logprobs - reference


def abs_log_ratio(logprobs: Tensor, reference: Tensor) -> Tensor:
    """|l − l_ref|, [N]. Source: KL-Cov's penalty, arXiv:2505.22617."""
    return (logprobs - reference).abs()


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """k2 = ½(l − l_ref)²; its gradient estimates the KL's gradient, [N]. Source: Schulman 2020."""
    return 0.5 * (logprobs - reference).square()


def k3(logprobs: Tensor, reference: Tensor, max_gap: Real | None = MAX_LOG_RATIO) -> Tensor:
    """k3 = exp(l_ref − l) − (l_ref − l) − 1 ≥ 0, [N].

    As a value it is unbiased, with low variance. Its gradient is not the KL's gradient, unless it
    is multiplied by r (`KL(unbiased=True)`). l_ref − l is clamped to ±max_gap nats; None = none.

    Source: Schulman 2020, k3; GRPO, arXiv:2402.03300 eq. 4; ±20: verl.
    """
    difference = log_ratio(reference, logprobs, max_gap)
    return difference.exp() - difference - 1


def gradient_norm(logprobs: Tensor, collision: Tensor, weight: Tensor) -> Tensor:
    """Norm of the gradient with respect to the logits, |w|·sqrt(1 − 2π + Σ_k π_k²), [N].

    Args:
        logprobs: l, [N].
        collision: Σ_k π_k² over the vocabulary at the token's position, [N].
        weight: w = ∂S/∂l, [N].

    Source: STAPO, arXiv:2602.15620, which bounds this norm.
    """
    return weight.abs() * (1 - 2 * logprobs.exp() + collision).clamp(min=0).sqrt()
