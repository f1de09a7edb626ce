"""Ratios, KLs, divergences, advantages of values and a token's gradient, as functions of tensors.

The notation is that of `surrogates`. Limits are numbers, or tensors with one number per token, [N].
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rlobj.base.errors import BatchError, ConfigError, nearest
from rlobj.objectives.divergences import DivergenceSettings
from rlobj.objectives.statistics import scan_to_go

Real = float | Tensor
Numbers = Tensor | Sequence[float]


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


@torch.no_grad()
def gae(
    rewards: Numbers,
    values: Numbers,
    lengths: Numbers,
    gamma: float = 1.0,
    lam: float | Numbers = 0.95,
    bootstrap: Numbers | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimates and the returns that a value is trained on, each [N].

        δ_t = r_t + γ·V_{t+1} − V_t,   A_t = Σ_k (γλ)^k·δ_{t+k},   G_t = A_t + V_t

    Sums are in float64, and end with the response; the results have the dtype of `values`, and no
    gradient.

    Args:
        rewards: r_t of each token, response after response, [N].
        values: V_t, the value of the context before each token, [N].
        lengths: tokens of each response, int [B]; 0 is allowed.
        gamma: γ in [0, 1].
        lam: λ in [0, 1], a number or one for each response, [B].
        bootstrap: V after the last token of each response, [B]; None = 0, the end.

    Raises:
        BatchError: the shapes do not fit, or γ or λ is out of range.

    Source: Schulman et al. 2016, arXiv:1506.02438, eq. 11 and 16.

    Example:
        >>> rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.25])
        >>> gae(rewards, values, torch.tensor([2]), gamma=1.0, lam=1.0)
        (tensor([0.5000, 0.7500]), tensor([1., 1.]))
    """
    values = torch.as_tensor(values)
    values = values if values.is_floating_point() else values.float()
    lengths = torch.as_tensor(lengths, dtype=torch.int64, device=values.device)
    if lengths.dim() != 1 or (lengths < 0).any():
        raise BatchError(f"lengths is {lengths.tolist()}; expected [B], each 0 or more")
    rewards, lam, after = (
        torch.as_tensor(number, dtype=torch.float64, device=values.device)
        for number in (rewards, lam, 0.0 if bootstrap is None else bootstrap)
    )
    size = (int(lengths.sum()),)
    if rewards.shape != size or values.shape != size:
        shapes = f"rewards {list(rewards.shape)} and values {list(values.shape)}"
        raise BatchError(f"{shapes}; expected {list(size)}, the sum of lengths")
    for name, number in (("lam", lam), ("bootstrap", after)):
        if number.dim() and number.shape != lengths.shape:
            raise BatchError(f"{name} is {list(number.shape)}; expected {list(lengths.shape)}")
    if not (0 <= gamma <= 1 and ((lam >= 0) & (lam <= 1)).all()):
        raise BatchError(f"gamma is {gamma} and lam {lam.tolist()}; expected numbers from 0 to 1")
    before, some = values.double(), lengths > 0
    following = torch.cat([before[1:], before[:1]])
    following[lengths.cumsum(0)[some] - 1] = after.expand(lengths.shape)[some]
    delta = rewards + gamma * following - before
    decay = (gamma * lam).expand(lengths.shape).repeat_interleave(lengths)
    advantages = scan_to_go(delta, decay, lengths)
    return advantages.to(values.dtype), (advantages + before).to(values.dtype)


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, clip: Real | None = None
) -> Tensor:
    """½·max((V − G)², (clamp(V, V_old − clip, V_old + clip) − G)²), [N]; None = ½·(V − G)².

    Source: PPO's value loss, as in verl's `compute_value_loss`.
    """
    loss = (values - returns).square()
    if clip is not None:
        near = values.clamp(old_values - clip, old_values + clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


_TOP = {"k": "top", "renormalise": "renormalise"}
_DIVERGENCES: dict[str, dict[str, str]] = {
    "reverse_kl": {},
    "forward_kl": {},
    "jsd": {"beta": "beta"},
    "reverse_kl_topk": {**_TOP, "outside": "outside"},
    "forward_kl_topk": _TOP,
    "cross_entropy_topk": _TOP,
    "mixed_kl_topk": {**_TOP, "weight": "beta", "outside": "outside"},
}
"""Kind -> its settings, each with its name in `DivergenceSettings`."""


def divergence(kind: str, logits: Tensor, teacher_logits: Tensor, **settings: Any) -> Tensor:
    """The divergence of the policy from a teacher over the vocabulary, nats, [N].

    The equations are those of `rlobj.objectives.divergences`. If one vocabulary is larger, its
    last entries are padding and have no probability; neither have entries that are −inf. It is
    inf, without gradient, where one distribution has none for a token that the other draws.

    Args:
        kind: reverse_kl, forward_kl, jsd (beta); over the teacher's k most likely tokens:
            forward_kl_topk (k), cross_entropy_topk (k), mixed_kl_topk (k, weight); over the
            policy's, as in verl: reverse_kl_topk (k). `renormalise` and `outside` are settings of
            kinds over k tokens.
        logits: of the policy, divided by the temperature, [N, V]; the gradient goes through them.
        teacher_logits: of the teacher, [N, V]; detached.
        **settings: of the kind.

    Raises:
        ConfigError: another kind or setting, or a value out of range.
        BatchError: the shapes do not fit.

    Example:
        >>> policy, teacher = torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> round(divergence("forward_kl_topk", policy, teacher, k=1).item(), 4)
        0.2777
    """
    if kind not in _DIVERGENCES:
        raise ConfigError(f"there is no divergence '{kind}'.{nearest(kind, _DIVERGENCES)}")
    names = _DIVERGENCES[kind]
    for name in settings.keys() - names.keys():
        raise ConfigError(f"divergence '{kind}' has no setting '{name}'.{nearest(name, names)}")
    if "k" in names and settings.get("k") is None:
        raise ConfigError(f"divergence '{kind}' needs k, the number of tokens: k=20")
    if logits.shape[:-1] != teacher_logits.shape[:-1]:
        raise BatchError("logits and teacher_logits differ in N")
    of = kind.removesuffix("_topk").removesuffix("_kl")
    fields: dict[str, Any] = {names[name]: value for name, value in settings.items()}
    measure = DivergenceSettings(of=of, **fields)  # type: ignore[arg-type]
    size = min(logits.shape[-1], teacher_logits.shape[-1])
    logp, logq = _log_softmax(logits[..., :size]), _log_softmax(teacher_logits[..., :size].detach())
    never = logits[..., :size] == -math.inf, teacher_logits[..., :size] == -math.inf
    if measure.top is None:
        value = measure.over_vocabulary(logp, logq)
    else:
        top = (logp if of == "reverse" else logq).topk(min(measure.top, size)).indices
        entropy = -(logp.exp() * logp).sum(-1)
        value = measure.over_top(logp.gather(-1, top), logq.gather(-1, top), entropy)
        never = never[0].gather(-1, top), never[1].gather(-1, top)
    return value.masked_fill(measure.is_infinite(*never), math.inf)


def _log_softmax(logits: Tensor) -> Tensor:
    """log-probs in single precision at least; −inf becomes a number whose probability is 0."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return logits.clamp(min=torch.finfo(logits.dtype).min / 2**40).log_softmax(-1)
