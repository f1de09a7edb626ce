"""The public scoring function and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlobj.errors import BatchError, ConfigError
from rlobj.scoring import tiles

FILTERED = -1e4
"""Proxy log-probability (nats) of a token that the min-p filter removed."""

CPU_CHUNK_BYTES = 8 << 20
"""Default size of a tile on a CPU: it stays in the cache."""

DEVICE_CHUNK_BYTES = 512 << 20
"""Default size of a tile elsewhere: few launches, each large enough to fill the device."""


@dataclass(frozen=True)
class TokenScores:
    """What one pass over the softmax tells about each of N tokens; None where it was not asked for.

    Float64 if the hidden states or the weights are, else float32.
    """

    logprobs: Tensor
    """log π(y) in nats at the sampling temperature, [N]; carries the gradient."""
    entropy: Tensor | None = None
    """−Σ π log π in nats at the sampling temperature, [N]; carries the gradient."""
    proxy_logprobs: Tensor | None = None
    """log π(y) with π renormalised over {k: π_k ≥ min_p·max π}; `FILTERED` outside; [N]."""
    collision: Tensor | None = None
    """Σ π², the probability that two draws agree, [N]."""
    entropy_sensitivity: Tensor | None = None
    """π(l + H) − Σ π_k²(log π_k + H), [N]; times −A it is dH/dη along the gradient of A·l."""


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    min_p: float | None = None,
    collision: bool = False,
    sensitivity: bool = False,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk_bytes: int | None = None,
) -> TokenScores:
    """Score tokens from the hidden states that predict them, never holding the [N, V] logits.

        z = cap(scale·(W·h + b)) / temperature,   cap(x) = softcap·tanh(x / softcap), or x

    `logprobs` and `entropy` are differentiable in hidden, weight and bias; the backward pass
    recomputes the logits tile by tile, and skips rows whose incoming gradient is zero and
    parameters that require none. Products and sums run in float32 for half-precision inputs, in
    float64 for float64 ones. `min_p` costs a second sweep over those tiles that hold a token it may
    keep.

    Args:
        hidden: Last hidden states, [N, H].
        weight: Output embeddings, [V, H].
        targets: Token ids, integer [N].
        temperature: Sampling temperature.
        entropy: Also the entropy.
        min_p: Also the min-p proxy with this share of the largest probability (Lp-Reg,
            arXiv:2510.03222); the filter sees the probabilities at the sampling temperature.
        collision: Also the collision probability.
        sensitivity: Also the entropy sensitivity.
        bias: Of the head, [V].
        scale: Factor on the raw logits (Granite, Cohere).
        softcap: Soft cap of the scaled logits (Gemma 2), before the temperature.
        chunk_bytes: Memory for one tile of logits; the sweeps use up to three.

    Returns:
        TokenScores of N rows. N = 0 gives empty columns that still carry a graph.

    Raises:
        BatchError: Shapes that do not fit, or a target outside 0..V−1.
        ConfigError: A setting outside its range.
    """
    _check_settings(temperature, min_p, scale, softcap, chunk_bytes)
    _check_shapes(hidden, weight, targets, bias)
    dtype = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else DEVICE_CHUNK_BYTES
    ask = _Ask(
        inner=scale / (softcap or temperature),
        outer=softcap / temperature if softcap else None,
        chunk_bytes=chunk_bytes,
        dtype=dtype,
        entropy=entropy,
        min_p=min_p,
        collision=collision,
        sensitivity=sensitivity,
    )
    return TokenScores(*_Score.apply(hidden, weight, bias, targets.long(), ask))


@dataclass(frozen=True)
class _Ask:
    """Everything about a call that is not a tensor."""

    inner: float
    outer: float | None
    chunk_bytes: int
    dtype: torch.dtype  # the working type
    entropy: bool
    min_p: float | None
    collision: bool
    sensitivity: bool

    def head(self, weight: Tensor, bias: Tensor | None, rows: int) -> tiles.Head:
        columns = tiles.tile_columns(rows, self.chunk_bytes, self.dtype.itemsize)
        return tiles.Head(weight, bias, self.inner, self.outer, columns)


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, ask: _Ask):
        ctx.set_materialize_grads(False)
        ctx.ask = ask
        head = ask.head(weight, bias, len(hidden))
        prepared = head.prepare(hidden, ask.dtype)
        sums = tiles.forward_sweep(
            head,
            prepared,
            targets,
            slope=ask.entropy or ask.sensitivity,
            square=ask.collision or ask.sensitivity,
            tile_maxima=ask.min_p is not None,
        )
        scores = _scores(head, prepared, targets, sums, ask)
        ctx.save_for_backward(hidden, weight, bias, targets, sums.maximum, sums.mass, sums.slope)
        ctx.mark_non_differentiable(*(column for column in scores[2:] if column is not None))
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, by_logprob, by_entropy, *_):
        hidden, weight, bias, targets, maximum, mass, slope = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        rows = tiles.RowGradient.of(by_logprob, by_entropy, maximum, mass, slope)
        active = rows.active()
        every = len(active) == len(hidden)
        hidden_rows = hidden if every else hidden[active]
        into = tiles.HeadGradient(
            hidden=torch.zeros_like(hidden_rows, dtype=ctx.ask.dtype) if wants_hidden else None,
            weight=torch.empty_like(weight) if wants_weight else None,
            bias=torch.empty_like(bias) if wants_bias else None,
        )
        head = ctx.ask.head(weight, bias, len(active))
        tiles.backward_sweep(
            head,
            head.prepare(hidden_rows, ctx.ask.dtype),
            targets if every else targets[active],
            rows if every else rows.take(active),
            into,
        )
        by_hidden = None if into.hidden is None else into.hidden.to(hidden.dtype)
        if by_hidden is not None and not every:
            by_hidden = torch.zeros_like(hidden).index_copy_(0, active, by_hidden)
        return by_hidden, into.weight, into.bias, None, None


def _scores(
    head: tiles.Head, prepared: Tensor, targets: Tensor, sums: tiles.Sums, ask: _Ask
) -> tuple[Tensor | None, ...]:
    """The columns of `TokenScores`, in its order."""
    log_mass = sums.mass.log()
    logprobs = sums.target - log_mass
    entropy = proxy = collision = sensitivity = None
    if sums.slope is not None:
        entropy = log_mass - sums.slope / sums.mass
    if ask.min_p is not None:
        # A few roundings below the cut, so that a token on it is kept.
        threshold = math.log(ask.min_p) - 8 * torch.finfo(ask.dtype).eps
        kept = tiles.proxy_sweep(head, prepared, targets, sums, threshold)
        proxy = torch.where(sums.target > threshold, sums.target - kept.log(), FILTERED)
    if sums.square is not None:
        collision = sums.square / sums.mass.square()
    if collision is not None and sums.square_slope is not None and sums.slope is not None:
        # log π + H = (z − m) − slope/mass: the log mass of one cancels that of the other.
        spread = sums.square_slope / sums.mass.square() - collision * sums.slope / sums.mass
        sensitivity = logprobs.exp() * (sums.target - sums.slope / sums.mass) - spread
    return (
        logprobs,
        entropy if ask.entropy else None,
        proxy,
        collision if ask.collision else None,
        sensitivity if ask.sensitivity else None,
    )


def _check_settings(
    temperature: float,
    min_p: float | None,
    scale: float,
    softcap: float | None,
    chunk_bytes: int | None,
) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ConfigError(f"temperature is {temperature}; it must be a finite number above 0.")
    if min_p is not None and not 0 < min_p <= 1:
        raise ConfigError(f"min_p is {min_p}; it must lie in (0, 1], or be None for no proxy.")
    if not (math.isfinite(scale) and scale != 0):
        raise ConfigError(f"scale is {scale}; it must be a finite number other than 0.")
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ConfigError(f"softcap is {softcap}; it must be above 0, or None for no cap.")
    if chunk_bytes is not None and chunk_bytes < 1:
        raise ConfigError(f"chunk_bytes is {chunk_bytes}; it must be at least 1.")


def _check_shapes(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise BatchError(
            f"hidden has shape {list(hidden.shape)} and weight {list(weight.shape)}; "
            "expected [N, H] and [V, H]."
        )
    if targets.shape != hidden.shape[:1] or targets.is_floating_point():
        raise BatchError(
            f"targets is {targets.dtype} of shape {list(targets.shape)}; "
            f"expected {len(hidden)} token ids, one per row of hidden."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise BatchError(
            f"bias has shape {list(bias.shape)}; expected [{len(weight)}], one per row of weight."
        )
    outside = ((targets < 0) | (targets >= len(weight))).nonzero()[:, 0]
    if len(outside):
        row = int(outside[0])
        raise BatchError(
            f"{len(outside)} targets lie outside the vocabulary of {len(weight)}: "
            f"the first is {int(targets[row])}, in row {row}."
        )
