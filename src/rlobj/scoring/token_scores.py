"""score_tokens, and its gradient."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlobj.base.errors import BatchError, ConfigError
from rlobj.scoring import tiles
from rlobj.scoring.rows import RowGradient, Sums

FILTERED = -1e4
"""Proxy log-probability (nats) of a token that the min-p filter removed."""

CPU_CHUNK_BYTES = 8 << 20
"""Default size of a tile on a CPU: small enough for the cache."""

DEVICE_CHUNK_BYTES = 512 << 20
"""Default size of a tile on a GPU: large enough to use the whole device."""


@dataclass(frozen=True)
class TokenScores:
    """The scores of N tokens; a column that was not requested is None.

    The columns are float64 if the hidden states or the weights are, else float32.
    """

    logprobs: Tensor
    """log π(y) in nats at the sampling temperature, [N]; with gradient."""
    entropy: Tensor | None = None
    """−Σ π log π in nats at the sampling temperature, [N]; with gradient."""
    proxy_logprobs: Tensor | None = None
    """log π(y) with π renormalised over {k: π_k ≥ min_p·max π}; `FILTERED` outside; [N]."""
    collision: Tensor | None = None
    """Σ π², the probability that two samples are equal, [N]."""
    entropy_sensitivity: Tensor | None = None
    """π(l + H) − Σ π_k²(log π_k + H), [N]; multiplied by −A, it is dH/dη for a step of size η along
    the gradient of A·l with respect to the logits."""


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    min_p: float | None = None,
    relative: bool = True,
    collision: bool = False,
    sensitivity: bool = False,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    low_rank: tuple[Tensor, Tensor] | None = None,
    chunk_bytes: int | None = None,
) -> TokenScores:
    """Score tokens from the hidden states that predict them, without storing the [N, V] logits.

        z = cap(scale·(W·h + B·u + b)) / temperature,   cap(x) = softcap·tanh(x / softcap), or x

    `logprobs` and `entropy` are differentiable in hidden, weight, bias, u and B. The backward pass
    computes the logits again, tile by tile. It skips rows whose incoming gradient is zero, and
    parameters that require no gradient. Logits and sums are float64 for float64 inputs, else
    float32. `min_p` has no extra matrix product if whole rows of logits fit `chunk_bytes` and the
    weights are multiplied in their own type. Otherwise a second sweep computes again the tiles that
    have a token above the filter.

    On a GPU, half-precision inputs are multiplied as they are. Under autocast, float32 inputs are
    rounded first, as in a linear layer. Triton computes the rows if it is installed. On a CPU
    nothing is rounded, with or without autocast.

    Args:
        hidden: last hidden states, [N, H].
        weight: output embeddings, [V, H].
        targets: token ids, integer [N].
        temperature: sampling temperature.
        entropy: also compute the entropy.
        min_p: also compute the min-p proxy with this share of the largest probability (Lp-Reg,
            arXiv:2510.03222), from the probabilities at the sampling temperature.
        relative: min_p is a share of the largest probability; else it is itself a probability.
            That needs a second sweep.
        collision: also compute the collision probability.
        sensitivity: also compute the entropy sensitivity.
        bias: bias of the head, [V]; −inf removes a token from the softmax, and its log-prob is −inf
            (not with a soft cap, which makes every logit finite).
        scale: factor of the raw logits (Granite, Cohere).
        softcap: soft cap of the scaled logits (Gemma 2), before the temperature.
        low_rank: u [N, r] and B [V, r], a correction of the head; with LoRA u = alpha/r·A·h.
        chunk_bytes: memory for one tile of logits. The sweeps use up to 1.5 times as much. Default:
            8 MiB on a CPU, 512 MiB on a GPU; with `min_p` at least 64 whole rows. A tile has all
            rows and at least 128 columns, which is 512 bytes per row; a second sweep stores 4
            bytes per row and tile.

    Returns:
        TokenScores of N rows. For N = 0 the columns are empty and have a graph.

    Raises:
        BatchError: shapes do not fit, an argument is not a tensor, or a target is not in 0..V−1.
        ConfigError: a setting is out of range or not a number.
    """
    _check_settings(temperature, min_p, scale, softcap, chunk_bytes)
    _check_shapes(hidden, weight, targets, bias, low_rank)
    dtype = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
    row_bytes = chunk_bytes
    if chunk_bytes is None or row_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else DEVICE_CHUNK_BYTES
        row_bytes = max(chunk_bytes, tiles.MINIMUM_ROWS * len(weight) * dtype.itemsize)
    operand = _operand(hidden, weight, dtype)
    head = tiles.Head(
        weights=(),
        bias=None,
        inner=scale / (softcap or temperature),
        outer=softcap / temperature if softcap else None,
        chunk_bytes=chunk_bytes,
        row_bytes=row_bytes,
        dtype=dtype,
        rounded=operand,
        operand=operand,
    )
    settings = _Settings(head, entropy, min_p, relative, collision, sensitivity)
    factors = [hidden, weight] if low_rank is None else [hidden, weight, *low_rank]
    return TokenScores(*_Score.apply(targets.long(), bias, settings, *factors))


@dataclass(frozen=True)
class _Settings:
    """The arguments of a call that are not tensors."""

    head: tiles.Head  # without its tensors, which autograd passes on
    entropy: bool
    min_p: float | None
    relative: bool
    collision: bool
    sensitivity: bool


def _operand(hidden: Tensor, weight: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The type in which hidden states and weights are multiplied.

    A GPU multiplies half-precision numbers as they are, and under autocast rounds the others as in
    a linear layer. A CPU rounds nothing.
    """
    if hidden.device.type != "cuda" or dtype == torch.float64:
        return dtype
    if torch.is_autocast_enabled("cuda"):
        return torch.get_autocast_dtype("cuda")
    return hidden.dtype if hidden.dtype == weight.dtype else dtype


class _Score(torch.autograd.Function):
    """The inputs after `settings` are hidden states and weight of each factor, alternately."""

    @staticmethod
    def forward(ctx, targets, bias, settings: _Settings, *factors):
        ctx.set_materialize_grads(False)
        ctx.settings = settings
        head = replace(settings.head, weights=factors[1::2], bias=bias)
        threshold = None
        if settings.min_p is not None:
            # Slightly lower, so that a token exactly at the threshold is kept.
            threshold = math.log(settings.min_p) - 8 * torch.finfo(head.dtype).eps
        sums = tiles.forward_sweep(
            head,
            head.prepare(factors[::2]),
            targets,
            slope=settings.entropy or settings.sensitivity,
            square=settings.collision or settings.sensitivity,
            threshold=threshold,
            relative=settings.relative,
        )
        scores = _scores(sums, settings, threshold)
        logprobs = scores[0]
        if bias is not None and logprobs is not None and head.outer is None:
            # Tiles have a large negative number instead of −∞, see `Head.curve`.
            logprobs.masked_fill_(bias[targets] == -torch.inf, -torch.inf)
        ctx.save_for_backward(targets, bias, sums.maximum, sums.mass, sums.slope, *factors)
        ctx.mark_non_differentiable(*(column for column in scores[2:] if column is not None))
        return scores

    @staticmethod
    @once_differentiable
    def backward(ctx, by_logprob, by_entropy, *_):
        targets, bias, maximum, mass, slope, *factors = ctx.saved_tensors
        hiddens, weights = factors[::2], factors[1::2]
        _, wants_bias, _, *wants = ctx.needs_input_grad
        rows = RowGradient.of(by_logprob, by_entropy, maximum, mass, slope)
        chosen = rows.with_gradient()
        every = len(chosen) == len(targets)
        if not every:
            hiddens = [hidden[chosen] for hidden in hiddens]
            targets, rows = targets[chosen], rows.take(chosen)
        head = replace(ctx.settings.head, weights=tuple(weights), bias=bias)
        if head.operand == torch.float16:  # its range is too small for gradients
            head = replace(head, operand=head.dtype)
        into = tiles.HeadGradient(
            hiddens=[
                torch.zeros_like(hidden, dtype=head.dtype) if wanted else None
                for hidden, wanted in zip(hiddens, wants[::2], strict=True)
            ],
            weights=[
                torch.empty_like(weight) if wanted else None
                for weight, wanted in zip(weights, wants[1::2], strict=True)
            ],
            bias=torch.empty_like(bias) if wants_bias else None,
        )
        tiles.backward_sweep(head, head.prepare(hiddens), targets, rows, into)
        found: list[Tensor | None] = []
        for whole, by_hidden, by_weight in zip(
            factors[::2], into.hiddens, into.weights, strict=True
        ):
            if by_hidden is not None:
                by_hidden = by_hidden.to(whole.dtype)
                if not every:
                    by_hidden = torch.zeros_like(whole).index_copy_(0, chosen, by_hidden)
            found += [by_hidden, by_weight]
        return None, into.bias, None, *found


def _scores(sums: Sums, settings: _Settings, threshold: float | None) -> tuple[Tensor | None, ...]:
    """The columns of `TokenScores`, in its order."""
    log_mass = sums.mass.log()
    logprobs = sums.target - log_mass
    entropy = proxy = collision = sensitivity = None
    if sums.slope is not None:
        entropy = log_mass - sums.slope / sums.mass
    if sums.kept is not None and threshold is not None:
        of = sums.target if settings.relative else logprobs
        kept = sums.kept.maximum(of.exp())  # a kept target counts, also if it was rounded
        proxy = torch.where(of > threshold, of - kept.log(), FILTERED)
    if sums.square is not None:
        collision = sums.square / sums.mass.square()
    if collision is not None and sums.square_slope is not None and sums.slope is not None:
        # log π + H = (z − m) − slope/mass: the two log masses cancel.
        spread = sums.square_slope / sums.mass.square() - collision * sums.slope / sums.mass
        sensitivity = logprobs.exp() * (sums.target - sums.slope / sums.mass) - spread
    return (
        logprobs,
        entropy if settings.entropy else None,
        proxy,
        collision if settings.collision else None,
        sensitivity if settings.sensitivity else None,
    )


def _check_settings(
    temperature: float,
    min_p: float | None,
    scale: float,
    softcap: float | None,
    chunk_bytes: int | None,
) -> None:
    numbers = {"temperature": temperature, "min_p": min_p, "scale": scale, "softcap": softcap}
    for name, value in {**numbers, "chunk_bytes": chunk_bytes}.items():
        optional = name not in ("temperature", "scale")
        if not (isinstance(value, Real) or (optional and value is None)):
            raise ConfigError(
                f"{name} is {reprlib.repr(value)}; expected one number, for all rows"
                f"{', or None.' if optional else '.'}"
            )
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


def _check_shapes(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    bias: Tensor | None,
    low_rank: tuple[Tensor, Tensor] | None,
) -> None:
    given = {"hidden": hidden, "weight": weight, "targets": targets, "bias": bias}
    for name, value in given.items():
        if not (isinstance(value, Tensor) or (name == "bias" and value is None)):
            raise BatchError(f"{name} is a {type(value).__name__}; expected a torch tensor.")
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
    if low_rank is not None:
        low, high = (list(side.shape) for side in low_rank)
        if low[:-1] != [len(hidden)] or high[:-1] != [len(weight)] or low[-1] != high[-1]:
            raise BatchError(
                f"low_rank has shapes {low} and {high}; "
                f"expected [{len(hidden)}, r] and [{len(weight)}, r]."
            )
    outside = ((targets < 0) | (targets >= len(weight))).nonzero()[:, 0]
    if len(outside):
        row = int(outside[0])
        raise BatchError(
            f"{len(outside)} targets lie outside the vocabulary of {len(weight)}: "
            f"the first is {int(targets[row])}, in row {row}."
        )
