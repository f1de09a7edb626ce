"""Draw tokens from logits, and compute the log-probabilities of the drawn tokens.

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlobj.samplers.types import SamplingSettings

_BLOCK = 2**25
"""Logits processed at a time. This limits the float64 working memory to a few hundred MB."""


def truncate(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Divide logits [B, V] by the temperature, and set tokens outside top-k, top-p, min-p to -inf.

    The order is top-k, top-p, min-p, as in transformers: top-p applies to the renormalised
    distribution that top-k leaves. Tokens that tie with the k-th are kept.
    """
    scores = logits.float() / settings.temperature
    if 0 < settings.top_k < scores.shape[-1]:
        smallest = scores.topk(settings.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < smallest, -math.inf)
    if settings.top_p < 1:
        probs, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
        before = probs.cumsum(-1) - probs
        beyond = (before >= settings.top_p).scatter(-1, order, before >= settings.top_p)
        scores = scores.masked_fill(beyond, -math.inf)
    if settings.min_p > 0:
        floor = scores.max(-1, keepdim=True).values + math.log(settings.min_p)
        scores = scores.masked_fill(scores < floor, -math.inf)
    return scores


def draw(logits: Tensor, uniform: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor]:
    """Draw one token for each row of logits [B, V]: ids [B] and log-probabilities [B], float32.

    Inverse transform sampling: the token is the first whose cumulative probability (summed in
    float64) reaches the row's uniform number u in (0, 1]. A token of probability 0 is never drawn.
    Temperature 0 takes the most likely token with log-probability 0 (NaN if logits are not finite).
    """
    if settings.temperature == 0:
        best, tokens = logits.float().max(-1)
        return tokens, best - best
    size = max(1, _BLOCK // logits.shape[-1])
    if len(logits) > size:
        blocks = zip(logits.split(size), uniform.split(size), strict=True)
        drawn = [draw(block, numbers, settings) for block, numbers in blocks]
        tokens, logprobs = zip(*drawn, strict=True)
        return torch.cat(tokens), torch.cat(logprobs)
    logprobs = truncate(logits, settings).log_softmax(-1)
    cumulative = logprobs.exp().double().cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target).clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], logprobs.gather(-1, tokens)[:, 0]
