"""The heads that need nothing but torch: ours, plain autograd, and the bare matrix products.

A method takes hidden states [N, H], a weight [V, H] and targets [N], and gives log-probs and, where
asked, entropies [N].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rlobj.scoring.token_scores import score_tokens

__all__ = [
    "METHODS",
    "MODES",
    "OURS",
    "PRODUCTS",
    "Method",
    "Mode",
    "Point",
    "filtered_logprobs",
    "once",
]

Mode = Literal["logprob", "both", "proxy"]
Method = Callable[[Tensor, Tensor, Tensor, Mode], tuple[Tensor, Tensor | None]]

MODES: dict[Mode, str] = {
    "logprob": "log-prob",
    "both": "log-prob and entropy",
    "proxy": "log-prob, entropy and min-p proxy",
}
"""What is asked. `both` is differentiated through both; the proxy carries no gradient."""

OURS, PRODUCTS = "rlobj", "bare products"
MIN_P = 0.02


@dataclass(frozen=True)
class Point:
    """One head: N rows, H wide, over V tokens; what is asked of it, and where it is computed."""

    rows: int
    width: int
    vocabulary: int
    mode: Mode
    backward: bool
    device: Literal["cpu", "cuda"] = "cpu"

    def size(self) -> str:
        """Its size in words."""
        sizes = f"N {self.rows:,}, H {self.width:,}, V {round(self.vocabulary / 1000)}k"
        return sizes if self.device == "cpu" else f"GPU, {sizes}"

    def __str__(self) -> str:
        way = "forward and backward" if self.backward else "forward"
        return f"{self.size()}, {MODES[self.mode]}, {way}"


def ours(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """`score_tokens`."""
    scores = score_tokens(
        hidden,
        weight,
        targets,
        entropy=mode != "logprob",
        min_p=MIN_P if mode == "proxy" else None,
    )
    return scores.logprobs, scores.entropy


def autograd(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """All logits, log_softmax, and torch's own gradient."""
    logits = hidden @ weight.T
    logprobs = torch.log_softmax(logits, -1)
    entropy = None if mode == "logprob" else -(logprobs.exp() * logprobs).sum(-1)
    if mode == "proxy":
        filtered_logprobs(logits.detach(), targets)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def filtered_logprobs(logits: Tensor, targets: Tensor) -> Tensor:
    """The min-p proxy from all logits: what a head without one has to add."""
    cut = logits.amax(-1, keepdim=True) + torch.tensor(MIN_P).log().item()
    logprobs = torch.log_softmax(logits.masked_fill(logits < cut, -torch.inf), -1)
    return logprobs.gather(1, targets[:, None])[:, 0]


class _Products(torch.autograd.Function):
    """One product forward; the same again and two more backward: 2NHV and 8NHV operations."""

    @staticmethod
    def forward(ctx, hidden, weight, columns):
        ctx.save_for_backward(hidden, weight)
        ctx.columns = columns
        tile = hidden.new_empty(len(hidden), columns)
        for part in weight.split(columns):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
        return hidden[:, 0].clone()

    @staticmethod
    def backward(ctx, *_):
        hidden, weight = ctx.saved_tensors
        tile = hidden.new_empty(len(hidden), ctx.columns)
        by_hidden, by_weight = torch.zeros_like(hidden), torch.empty_like(weight)
        for part, out in zip(weight.split(ctx.columns), by_weight.split(ctx.columns), strict=True):
            torch.mm(hidden, part.T, out=tile[:, : len(part)])
            by_hidden.addmm_(tile[:, : len(part)], part)
            torch.mm(tile[:, : len(part)].T, hidden, out=out)
        return by_hidden, by_weight, None


def products(hidden: Tensor, weight: Tensor, targets: Tensor, mode: Mode):
    """The bare matrix products, tile by tile: the floor of every head that keeps no logits."""
    elements = 1 << 28 if hidden.is_cuda else 1 << 21  # in a tile: large for a GPU, else in cache
    outcome = _Products.apply(hidden, weight, max(128, elements // len(hidden)))
    assert isinstance(outcome, Tensor)
    return outcome, outcome if mode != "logprob" else None


def once(method: Method, hidden: Tensor, weight: Tensor, targets: Tensor, point: Point) -> None:
    """What is measured: one pass forward, and backward where the point asks for it."""
    if not point.backward:
        with torch.no_grad():
            method(hidden, weight, targets, point.mode)
        return
    hidden, weight = hidden.detach().requires_grad_(), weight.detach().requires_grad_()
    logprobs, entropy = method(hidden, weight, targets, point.mode)
    loss = logprobs.sum()
    if point.mode == "both" and entropy is not None:
        loss = loss + entropy.sum()
    loss.backward()


METHODS: dict[str, Method] = {OURS: ours, PRODUCTS: products, "autograd": autograd}
