"""Divergences of a policy from a teacher over the vocabulary, without storing [N, V] logits.

Over the whole vocabulary, both heads compute one tile of logits at a time, in two sweeps: one for
the sums of exponentials, one for the divergence. The backward pass computes the tiles again. Over
the teacher's k most likely tokens, the policy computes only the logits of these tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlobj.objectives.divergences import DivergenceSettings
from rlobj.scoring import tiles
from rlobj.scoring.rows import Curve
from rlobj.scoring.token_scores import TokenScores, score_rows

_TILES = 4
"""Tiles of the usual size that are in memory at once: logits of both, their summands and slopes."""
_GATHERED_BYTES = 64 << 20
"""Memory for the head's rows that are gathered at once."""


@dataclass(frozen=True)
class TopTokens:
    """A teacher's most likely tokens at N positions.

    Attributes:
        ids: [N, k].
        logprobs: as parts of the whole vocabulary, nats, [N, k].
        vocabulary: tokens of the teacher; later entries of the policy's head are padding.
    """

    ids: Tensor
    logprobs: Tensor
    vocabulary: int

    def rows(self, rows: Tensor) -> "TopTokens":
        """The tokens at some of the positions."""
        return replace(self, ids=self.ids[rows], logprobs=self.logprobs[rows])


@dataclass(frozen=True)
class States:
    """What gives a teacher's logits at N positions.

    Attributes:
        hidden: last hidden states, [N, H].
        head: of the teacher, at the sampling temperature.
    """

    hidden: Tensor
    head: tiles.Head

    def rows(self, rows: Tensor) -> "States":
        """The states at some of the positions."""
        return replace(self, hidden=self.hidden[rows])


Comparison = tuple[DivergenceSettings, TopTokens | States]
"""A divergence, and the teacher at the same positions."""


@torch.no_grad()
def top_tokens(hidden: Tensor, head: tiles.Head, count: int, vocabulary: int) -> TopTokens:
    """The most likely tokens of a model.

    Args:
        hidden: last hidden states, [N, H].
        head: of the model.
        count: k.
        vocabulary: tokens of the policy; later entries of a longer head are padding.
    """
    head = head.first(vocabulary)
    ids = torch.zeros(len(hidden), 0, dtype=torch.int64, device=hidden.device)
    largest = hidden.new_empty(ids.shape, dtype=head.dtype)
    total = hidden.new_full((len(hidden),), -torch.inf, dtype=head.dtype)
    for span, logits in _logits(head, hidden, head.columns(len(hidden))):
        total = torch.logaddexp(total, logits.logsumexp(1))
        tile = logits.topk(min(count, logits.shape[1]))
        both = torch.cat([largest, tile.values], 1)
        largest, places = both.topk(min(count, both.shape[1]))
        ids = torch.cat([ids, tile.indices + span.start], 1).gather(1, places)
    return TopTokens(ids, largest - total[:, None], len(head.weight))


def score_divergence(
    settings: DivergenceSettings,
    teacher: TopTokens | States,
    hidden: Tensor,
    head: Any,
    parameters: tuple[Tensor, Tensor | None],
    targets: Tensor,
    scores: TokenScores,
) -> Tensor:
    """The divergence of the policy from a teacher, with gradient, nats, [N].

    Args:
        settings: which divergence.
        teacher: at the same positions; for `settings.top` its most likely tokens.
        hidden: last hidden states of the policy, [N, H].
        head: makes the policy's head from its weight and bias.
        parameters: the weight, [V, H], and the bias, [V] or None.
        targets: token ids, [N].
        scores: of these tokens; with entropy if `settings.outside` is set.
    """
    if not len(hidden):
        return scores.logprobs * 0
    if isinstance(teacher, States):
        return _Divergence.apply(hidden, *parameters, head, teacher, settings)  # type: ignore[no-any-return]
    weight, bias = parameters
    if (size := teacher.vocabulary) < len(weight):
        weight, bias = weight[:size], None if bias is None else bias[:size]
        targets, entropy = targets.clamp(max=size - 1), settings.outside is not None
        scores = score_rows(head, hidden, weight, bias, targets, entropy=entropy)
    ids = torch.cat([targets[:, None], teacher.ids], 1)
    logits: Any = _LogitsAt.apply(hidden, weight, bias, ids, head)
    logp = logits[:, 1:] - logits[:, :1] + scores.logprobs[:, None]
    return settings.over_top(logp, teacher.logprobs.to(logp), scores.entropy)


def _logits(head: tiles.Head, hidden: Tensor, columns: int) -> Iterator[tuple[slice, Tensor]]:
    """The logits of all rows, one tile of the vocabulary at a time, in the same memory."""
    inputs, work = head.prepare(hidden), head.workspace(len(hidden), columns)
    for span in head.spans(columns):
        yield span, head.curve(span).logits(tiles.products(work, inputs, head.rows(span)))


def _log_mass(head: tiles.Head, hidden: Tensor, columns: int) -> Tensor:
    """log Σ exp(logit), [N]."""
    parts = [logits.logsumexp(1) for _, logits in _logits(head, hidden, columns)]
    return torch.stack(parts).logsumexp(0)


def _by_products(slope: Tensor, logits: Tensor, curve: Curve) -> Tensor:
    """The gradient of products from that of their logits, in place."""
    if curve.cap is not None:
        slope *= curve.cap * (1 - (logits / curve.cap).square())
    return slope.mul_(curve.factor)


class _Divergence(torch.autograd.Function):
    """A divergence over the whole vocabulary, [N]."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, head_of, teacher, settings):
        size = min(len(weight), len(teacher.head.weight))
        head, other = head_of(weight, bias).first(size), teacher.head.first(size)
        columns = head.columns(_TILES * len(hidden))
        masses = _log_mass(head, hidden, columns), _log_mass(other, teacher.hidden, columns)
        value = torch.zeros_like(masses[0])
        slopes = torch.zeros_like(masses[0])
        for _, logp, logq in _pairs(head, hidden, other, teacher.hidden, masses):
            summands, slope = settings.terms(logp, logq)
            value += summands.sum(1)
            slopes += slope.sum(1)
        ctx.head_of, ctx.other, ctx.settings = head_of, other, settings
        ctx.save_for_backward(hidden, weight, bias, teacher.hidden, *masses, slopes)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value):
        hidden, weight, bias, states, *rows = ctx.saved_tensors
        chosen = by_value.nonzero()[:, 0]
        by_hidden = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        by_bias = None if bias is None else torch.zeros_like(bias)
        if len(chosen):
            mass, other_mass, slopes = (values[chosen] for values in rows)
            head = ctx.head_of(weight, bias).first(len(ctx.other.weight))
            if head.operand == torch.float16:  # its range is too small for gradients
                head = replace(head, operand=head.dtype)
            active, masses = hidden[chosen], (mass, other_mass)
            inputs, sums = head.prepare(active), torch.zeros_like(active, dtype=head.dtype)
            by_value = by_value[chosen, None]
            for span, logp, logq in _pairs(head, active, ctx.other, states[chosen], masses):
                _, slope = ctx.settings.terms(logp, logq)
                slope = (slope - logp.exp() * slopes[:, None]).mul_(by_value)
                slope = _by_products(slope, logp + mass[:, None], head.curve(span))
                tile = slope.to(head.operand)
                if by_hidden is not None:
                    tiles.accumulate(sums, tile, head.rows(span), alpha=head.before)
                if by_weight is not None:
                    tiles.multiply(tile.T, inputs, out=by_weight[span])
                if by_bias is not None:
                    by_bias[span] = tile.sum(0, dtype=head.dtype) * head.before
            if by_hidden is not None:
                by_hidden.index_copy_(0, chosen, sums.to(hidden.dtype))
        return by_hidden, by_weight, by_bias, None, None, None


def _pairs(
    head: tiles.Head, hidden: Tensor, other: tiles.Head, states: Tensor, masses: tuple[Any, Any]
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """log p and log q of all rows, one tile of the vocabulary at a time."""
    columns = head.columns(_TILES * len(hidden))
    both = zip(_logits(head, hidden, columns), _logits(other, states, columns), strict=True)
    for (span, logits), (_, other_logits) in both:
        yield span, logits.sub_(masses[0][:, None]), other_logits.sub_(masses[1][:, None])


class _LogitsAt(torch.autograd.Function):
    """The logits of some tokens at each position, [N, K]."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, ids, head_of):
        head = head_of(weight, bias)
        logits = hidden.new_empty(ids.shape, dtype=head.dtype)
        for rows, curve, inputs, gathered in _gathered(head, hidden, ids):
            logits[rows] = curve.logits(torch.bmm(gathered, inputs[:, :, None])[:, :, 0])
        ctx.head_of = head_of
        ctx.save_for_backward(hidden, weight, bias, ids, logits)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx, by_logits):
        hidden, weight, bias, ids, logits = ctx.saved_tensors
        head = ctx.head_of(weight, bias)
        by_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        by_bias = None if bias is None else torch.zeros_like(bias)
        for rows, curve, inputs, gathered in _gathered(head, hidden, ids):
            slope = _by_products(by_logits[rows].clone(), logits[rows], curve)
            if by_hidden is not None:
                products = torch.bmm(slope[:, None], gathered)[:, 0]
                by_hidden[rows] = (products * head.before).to(hidden.dtype)
            if by_weight is not None:
                outer = slope.flatten()[:, None] * inputs.repeat_interleave(ids.shape[1], 0)
                by_weight.index_add_(0, ids[rows].flatten(), outer.to(weight.dtype))
            if by_bias is not None:
                by_bias.index_add_(0, ids[rows].flatten(), (slope * head.before).flatten())
        return by_hidden, by_weight, by_bias, None, None


def _gathered(
    head: tiles.Head, hidden: Tensor, ids: Tensor
) -> Iterator[tuple[slice, Curve, Tensor, Tensor]]:
    """Some positions at a time: their slice, what makes logits of products, their inputs, and the
    head's rows for their ids, [n, K, H]."""
    count, (_, width) = ids.shape[1], hidden.shape
    step = max(1, _GATHERED_BYTES // (count * width * head.dtype.itemsize))
    for start in range(0, len(hidden), step):
        rows = slice(start, start + step)
        inputs = head.prepare(hidden[rows]).to(head.dtype)
        yield rows, head.curve(ids[rows]), inputs, head.rows(ids[rows]).to(head.dtype)
