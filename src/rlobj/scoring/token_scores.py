"""score_tokens, and its gradient."""

import functools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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
    hidden: Tensor | None = None
    """The last hidden states, [N, H]; from a `PolicyScorer`, as what follows."""
    top_ids: Tensor | None = None
    """The k most likely tokens, [N, k]."""
    top_logprobs: Tensor | None = None
    """log π of these tokens in nats, [N, k]."""
    divergences: Mapping[str, Tensor] | None = None
    """Divergences from teachers by name, nats, [N] each; with gradient."""


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
    chunk_bytes: int | None = None,
) -> TokenScores:
    """Score tokens from the hidden states that predict them, without storing the [N, V] logits.

        z = cap(scale·(W·h + b)) / temperature,   cap(x) = softcap·tanh(x / softcap), or x

    `logprobs` and `entropy` are differentiable in hidden, weight and bias. The backward pass
    computes the logits again, tile by tile. It skips rows whose incoming gradient is zero, and
    parameters that require no gradient. Logits and sums are float64 for float64 inputs, else
    float32. For `min_p`, a second sweep computes again the tiles that have a token above the
    filter.

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
        collision: also compute the collision probability.
        sensitivity: also compute the entropy sensitivity.
        bias: bias of the head, [V]; −inf removes a token from the softmax, and its log-prob is −inf
            (not with a soft cap, which makes every logit finite).
        scale: factor of the raw logits (Granite, Cohere).
        softcap: soft cap of the scaled logits (Gemma 2), before the temperature.
        chunk_bytes: memory for one tile of logits. The sweeps use up to 1.5 times as much. Default:
            8 MiB on a CPU, 512 MiB on a GPU. A tile has all rows and at least 128 columns, which is
            512 bytes per row; a second sweep stores 4 bytes per row and tile.

    Returns:
        TokenScores of N rows. For N = 0 the columns are empty and have a graph.

    Raises:
        BatchError: a target is not in 0..V−1, or there is not one for each row; or bias is not [V].
        ConfigError: a number is out of range.
    """
    _check_settings(
        temperature=temperature,
        min_p=min_p,
        scale=abs(scale),
        softcap=softcap,
        chunk_bytes=chunk_bytes,
    )
    _check_tensors(hidden, weight, targets, bias)
    head = head_of(hidden, weight, temperature, scale, softcap, chunk_bytes)
    keep = None
    if min_p is not None:
        # Slightly lower, so that a token exactly at the threshold is kept.
        keep = tiles.Keep(math.log(min_p) - 8 * torch.finfo(head.keywords["dtype"]).eps, relative)
    wanted = entropy, collision, sensitivity
    return score_rows(head, hidden, weight, bias, targets.long(), keep, *wanted)


def score_rows(
    head: Callable[..., tiles.Head],
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    keep: tiles.Keep | None = None,
    entropy: bool = False,
    collision: bool = False,
    sensitivity: bool = False,
) -> TokenScores:
    """`score_tokens` with what makes the head, and without checks."""
    wanted = entropy, collision, sensitivity
    return TokenScores(*_Score.apply(hidden, weight, bias, targets, head, keep, *wanted))


def head_of(
    hidden: Tensor,
    weight: Tensor,
    temperature: float = 1.0,
    scale: float = 1.0,
    softcap: float | None = None,
    chunk_bytes: int | None = None,
) -> functools.partial[tiles.Head]:
    """Makes a head from its weight and bias, which autograd passes on.

    Args:
        hidden: hidden states; their type and device choose the type of the products.
        weight: the weight, likewise.
        temperature: as in `score_tokens`, and what follows.
        scale: factor of the raw logits.
        softcap: soft cap of the scaled logits.
        chunk_bytes: memory for one tile of logits.
    """
    dtype = torch.promote_types(torch.promote_types(hidden.dtype, weight.dtype), torch.float32)
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if hidden.device.type == "cpu" else DEVICE_CHUNK_BYTES
    operand = _operand(hidden, weight, dtype)
    return functools.partial(
        tiles.Head,
        inner=scale / (softcap or temperature),
        outer=softcap / temperature if softcap else None,
        chunk_bytes=chunk_bytes,
        dtype=dtype,
        rounded=operand,
        operand=operand,
    )


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
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, head_of, keep, entropy, collision, sensitivity):
        ctx.set_materialize_grads(False)
        ctx.head_of = head_of
        head = head_of(weight, bias)
        sums = tiles.forward_sweep(
            head,
            head.prepare(hidden),
            targets,
            slope=entropy or sensitivity,
            square=collision or sensitivity,
            keep=keep,
        )
        logprobs, *columns = _scores(sums, keep)
        wanted = (entropy, True, collision, sensitivity)
        columns = [column if wants else None for column, wants in zip(columns, wanted, strict=True)]
        if bias is not None and head.outer is None:
            # Tiles have a large negative number instead of −∞, see `Head.curve`.
            logprobs.masked_fill_(bias[targets] == -torch.inf, -torch.inf)
        ctx.save_for_backward(hidden, weight, bias, targets, sums.maximum, sums.mass, sums.slope)
        ctx.mark_non_differentiable(*(column for column in columns[1:] if column is not None))
        return logprobs, *columns

    @staticmethod
    @once_differentiable
    def backward(ctx, by_logprob, by_entropy, *_):
        hidden, weight, bias, targets, maximum, mass, slope = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        rows = RowGradient.of(by_logprob, by_entropy, maximum, mass, slope)
        chosen = rows.with_gradient()
        every = len(chosen) == len(targets)
        active = hidden if every else hidden[chosen]
        if not every:
            targets, rows = targets[chosen], rows.take(chosen)
        head = ctx.head_of(weight, bias)
        if head.operand == torch.float16:  # its range is too small for gradients
            head = replace(head, operand=head.dtype)
        by_hidden = torch.zeros_like(active, dtype=head.dtype) if wants_hidden else None
        by_weight = torch.empty_like(weight) if wants_weight else None
        by_bias = torch.empty_like(bias) if wants_bias else None
        inputs = head.prepare(active)
        tiles.backward_sweep(head, inputs, targets, rows, by_hidden, by_weight, by_bias)
        if by_hidden is not None:
            by_hidden = by_hidden.to(hidden.dtype)
            if not every:
                by_hidden = torch.zeros_like(hidden).index_copy_(0, chosen, by_hidden)
        return by_hidden, by_weight, by_bias, *[None] * 6


def _scores(sums: Sums, keep: tiles.Keep | None) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
    """The columns of `TokenScores` that the sums give, in its order."""
    log_mass = sums.mass.log()
    logprobs = sums.target - log_mass
    entropy = proxy = collision = sensitivity = None
    if sums.slope is not None:
        entropy = log_mass - sums.slope / sums.mass
    if sums.kept is not None and keep is not None:
        of = sums.target if keep.relative else logprobs
        kept = sums.kept.maximum(of.exp())  # a kept target counts, also if it was rounded
        proxy = torch.where(of <= keep.threshold, FILTERED, of - kept.log())  # NaN stays NaN
    if sums.square is not None:
        collision = sums.square / sums.mass.square()
    if collision is not None and sums.square_slope is not None and sums.slope is not None:
        # log π + H = (z − m) − slope/mass: the two log masses cancel.
        spread = sums.square_slope / sums.mass.square() - collision * sums.slope / sums.mass
        sensitivity = logprobs.exp() * (sums.target - sums.slope / sums.mass) - spread
    return logprobs, entropy, proxy, collision, sensitivity


def _check_settings(**settings: float | None) -> None:
    """Refuse numbers that would give wrong scores."""
    for name, value in settings.items():
        most = 1.0 if name == "min_p" else sys.float_info.max
        if value is not None and not 0 < value <= most:
            raise ConfigError(f"{name} is {value}; expected more than 0 and at most {most:g}")


def _check_tensors(hidden: Tensor, weight: Tensor, targets: Tensor, bias: Tensor | None) -> None:
    """Refuse shapes and targets that would give wrong scores."""
    if bias is not None and bias.shape != weight.shape[:1]:
        raise BatchError(f"bias is {list(bias.shape)}; expected [{len(weight)}]")
    if targets.shape != hidden.shape[:1] or targets.is_floating_point():
        raise BatchError(
            f"targets is {targets.dtype} {list(targets.shape)}; expected {len(hidden)} token ids"
        )
    if (outside := (targets < 0) | (targets >= len(weight))).any():
        raise BatchError(
            f"targets has {int(targets[outside][0])}, outside of the vocabulary of {len(weight)}"
        )
