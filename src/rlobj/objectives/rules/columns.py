"""The columns of rules: their meanings, and the TokenBatch columns that they need."""

from __future__ import annotations

__all__ = ["COLUMNS"]

COLUMNS: dict[str, tuple[str, tuple[str, ...]]] = {
    # name: (meaning, needed TokenBatch columns)
    "prob": ("π, probability of the token under the current policy", ("logprobs",)),
    "logprob": ("l = log π, nats", ("logprobs",)),
    "surprisal": ("−log π, nats", ("logprobs",)),
    "entropy": ("H of the current policy at the token's position, nats", ("entropy",)),
    "old_prob": ("π_old, probability under the rollout's policy", ("old_logprobs",)),
    "old_logprob": ("l0 = log π_old, nats", ("old_logprobs",)),
    "old_surprisal": ("−log π_old, nats", ("old_logprobs",)),
    "old_entropy": ("H of the rollout's policy, nats", ("old_entropy",)),
    "advantage": ("A, the token's advantage", ()),
    "reward": ("R, the response's reward", ("rewards",)),
    "ratio": ("r = π / π_old", ("logprobs", "old_logprobs")),
    "length": ("trained tokens in the response", ()),
    "position": ("index in the response, from 0", ()),
    "covariance": ("(A − mean A)·(l − mean l), means over the update's tokens", ("logprobs",)),
    "proxy_gap": ("l_proxy − l, nats", ("proxy_logprobs", "logprobs")),
    "sampler_gap": ("l0 − l_sampler, nats", ("old_logprobs", "sampler_logprobs")),
    "collision": ("Σ π² over the vocabulary", ("collision",)),
    "gradient_norm": ("|A|·sqrt(1 − 2π + Σ π²), of the logits", ("logprobs", "collision")),
}
