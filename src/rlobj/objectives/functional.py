"""Equations as functions of tensors, one published equation each.

Notation in this library (shapes: N trained tokens, B responses):

    l = log π_θ(o_t)     log-probability of the sampled token under the policy being trained, nats
    l0                   the same under π_old, the policy at the start of the rollout's updates
    r = exp(l − l0)      importance ratio
    A                    advantage
    sg[x]                x without gradient

Surrogates are maximised; only `Objective.loss` has a minus sign. Bounds and temperatures are
numbers, or tensors with one number per token, [N].
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
        exponent = _clamp(exponent, -limit if below else -math.inf, limit)
    return exponent.clamp(max=int(math.log(torch.finfo(exponent.dtype).max)))


def log_ratio(logprobs: Tensor, reference: Tensor, limit: Real | None = MAX_LOG_RATIO) -> Tensor:
    """l − l_reference clamped to ±limit nats, [N]; None = no clamp, see `bounded`."""
    return bounded(logprobs - reference, limit)


def choose(rule: Tensor, then: Real, otherwise: Real, like: Tensor) -> Tensor:
    """`then` where the rule is true, else `otherwise`, [N] in the dtype of `like`."""
    values = (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (then, otherwise))
    return torch.where(rule, *values)


def _clamp(values: Tensor, low: Real, high: Real) -> Tensor:
    if isinstance(low, Tensor) or isinstance(high, Tensor):  # torch does not mix both kinds
        return values.clamp(min=low).clamp(max=high)
    return values.clamp(low, high)


def clip(
    ratio: Tensor, advantages: Tensor, low: Real, high: Real, dual: Real | None = None
) -> Tensor:
    """Clipped surrogate, S = min(r·A, clip(r, 1 − ε_low, 1 + ε_high)·A).

    With `dual` = c, tokens with A < 0 have max(S, c·A) instead. This bounds the loss of tokens with
    a very large ratio.

    Args:
        ratio: r, [N].
        advantages: A, [N].
        low: ε_low, an offset below 1.
        high: ε_high, an offset above 1.
        dual: c > 1, an absolute ratio, or None.

    Source: PPO, arXiv:1707.06347 eq. 7; asymmetric ε: DAPO, arXiv:2503.14476 eq. 8; dual clip:
        arXiv:1912.09729.
    """
    surrogate = torch.minimum(ratio * advantages, _clamp(ratio, 1 - low, 1 + high) * advantages)
    if dual is None:
        return surrogate
    return torch.where(advantages < 0, torch.maximum(surrogate, dual * advantages), surrogate)


def cispo(
    logprobs: Tensor, ratio: Tensor, advantages: Tensor, max: Real, min: Real = 0.0
) -> Tensor:
    """CISPO, S = sg[clip(r, min, max)]·A·l, [N]: the weight is clipped, the gradient is not.

    `max` is an absolute ratio, not an offset from 1.

    Source: MiniMax-M1, arXiv:2506.13585; absolute cap 5: ScaleRL, arXiv:2510.13786.
    """
    return _clamp(ratio.detach(), min, max) * advantages * logprobs


def soft_gate(ratio: Tensor, advantages: Tensor, tau_pos: Real, tau_neg: Real) -> Tensor:
    """SAPO's soft gate, S = (4/τ)·σ(τ·(r − 1))·A with τ = τ_pos where A > 0, else τ_neg.

    At r = 1 its gradient in r is A, that of the unclipped surrogate.

    Source: SAPO, arXiv:2511.20347.
    """
    tau = choose(advantages > 0, tau_pos, tau_neg, advantages)
    return 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantages


def geometric_clip(log_ratio: Tensor, advantages: Tensor, epsilon: Real) -> Tensor:
    """GMPO's token-level clip in log space; the sign of A selects the side, [N].

        f = min(l − l0, ε) where A > 0, max(l − l0, −ε) where A ≤ 0

    Source: GMPO, arXiv:2507.20673.
    """
    return torch.where(advantages > 0, log_ratio.clamp(max=epsilon), log_ratio.clamp(min=-epsilon))


def dppo_tv(
    logprobs: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    low: Real,
    high: Real,
    cap: Real | None,
    limit: Real | None = MAX_LOG_RATIO,
) -> Tensor:
    """DPPO with the total-variation trust region.

        S = sg[min(r, cap)]·A·l   while π − π_b ≤ high (A > 0) or π − π_b ≥ −low (A ≤ 0), else 0

    Args:
        logprobs: l, [N].
        behaviour: log π_b, log-probabilities of the policy at the centre of the region, [N].
        advantages: A, [N].
        low: the largest decrease of the token's probability with a gradient.
        high: the largest increase of the token's probability with a gradient.
        cap: the largest r, or None.
        limit: l − log π_b is clamped to ±limit nats; None = no clamp.

    Source: DPPO, arXiv:2602.04879.
    """
    current = logprobs.detach()
    moved = current.exp() - behaviour.exp()
    inside = torch.where(advantages > 0, moved <= high, moved >= -low)
    ratio = log_ratio(current, behaviour, limit).exp()
    ratio = ratio if cap is None else ratio.clamp(max=cap)
    return torch.where(inside, ratio, torch.zeros_like(ratio)) * advantages * logprobs


def vespo_weight(log_weight: Tensor, k: Tensor, lam: Tensor) -> Tensor:
    """VESPO's soft sequence weight, φ(w) = w^k·exp(λ·(1 − w)) = exp(λ + k·log w − λ·w).

    Equal to 1 at w = 1.

    Source: VESPO, arXiv:2602.10693.
    """
    return torch.exp(lam + k * log_weight - lam * log_weight.exp())


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
