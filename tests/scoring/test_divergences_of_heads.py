"""Divergences that are computed tile by tile equal those of all logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rlobj.objectives.divergences import DivergenceSettings
from rlobj.objectives.functional import divergence
from rlobj.scoring import score_tokens
from rlobj.scoring.divergences import States, score_divergence, top_tokens
from rlobj.scoring.token_scores import head_of

KINDS: list[tuple[str, dict[str, Any], DivergenceSettings]] = [
    ("reverse_kl", {}, DivergenceSettings()),
    ("forward_kl", {}, DivergenceSettings(of="forward")),
    ("jsd", {"beta": 0.3}, DivergenceSettings(of="jsd", beta=0.3)),
    ("mixed_kl_topk", {"k": 6, "weight": 0.0, "renormalise": False}, DivergenceSettings(top=6)),
    (
        "mixed_kl_topk",
        {"k": 6, "weight": 0.0, "outside": -9.0},
        DivergenceSettings(top=6, outside=-9),
    ),
    ("forward_kl_topk", {"k": 6}, DivergenceSettings(of="forward", top=6)),
    ("cross_entropy_topk", {"k": 6}, DivergenceSettings(of="cross_entropy", top=6)),
    ("mixed_kl_topk", {"k": 6}, DivergenceSettings(of="mixed", top=6)),
]
SHAPES = {
    "plain": {},
    "soft cap, scale, temperature": {"softcap": 3.0, "scale": 0.7, "temperature": 0.8},
}


class Case:
    """Hidden states and heads of a policy with 300 tokens and of a teacher."""

    def __init__(self, rows: int, shape: dict[str, Any], bias: bool, teacher: int = 333) -> None:
        generator = torch.Generator().manual_seed(rows)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, dtype=torch.float64, generator=generator)

        self.hidden, self.weight = normal(rows, 5).requires_grad_(), normal(300, 5).requires_grad_()
        self.bias = normal(300).requires_grad_() if bias else None
        self.shape = shape
        self.temperature = shape.get("temperature", 1.0)
        self.states, self.head = normal(rows, 4), normal(teacher, 4)
        self.targets = torch.randint(0, 300, (rows,), generator=generator)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.hidden, self.weight, *([] if self.bias is None else [self.bias])]

    def logits(self) -> Tensor:
        raw = self.hidden @ self.weight.T + (0 if self.bias is None else self.bias)
        raw, cap = raw * self.shape.get("scale", 1.0), self.shape.get("softcap")
        return (cap * torch.tanh(raw / cap) if cap else raw) / self.temperature

    def teacher(self, top: int | None) -> Any:
        head = head_of(self.states, self.head, self.temperature, chunk_bytes=4096)(self.head, None)
        return States(self.states, head) if top is None else top_tokens(self.states, head, top, 300)

    def value(self, settings: DivergenceSettings) -> Tensor:
        scores = score_tokens(
            self.hidden, self.weight, self.targets, entropy=True, bias=self.bias, **self.shape
        )
        arguments = {**self.shape, "chunk_bytes": 4096}
        head = head_of(self.hidden, self.weight, **arguments)
        parameters, teacher = (self.weight, self.bias), self.teacher(settings.top)
        return score_divergence(
            settings, teacher, self.hidden, head, parameters, self.targets, scores
        )


@pytest.mark.parametrize(("kind", "of", "settings"), KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("tokens", [333, 280], ids=["larger teacher", "smaller teacher"])
def test_tiles_give_the_value_and_the_gradient_of_all_logits(
    kind, of, settings, shape, bias, tokens
):
    case = Case(7, shape, bias, tokens)
    teacher = case.states @ case.head.T / case.temperature
    weights = torch.tensor([1.0, -2, 0, 3, 0.5, 0, 1], dtype=torch.float64)  # 0: a row is skipped
    tiles, logits = case.value(settings), divergence(kind, case.logits(), teacher, **of)
    torch.testing.assert_close(tiles, logits, rtol=1e-12, atol=1e-13)
    gradients = torch.autograd.grad((weights * tiles).sum(), case.parameters)
    expected = torch.autograd.grad((weights * logits).sum(), case.parameters)
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("settings", [KINDS[2][2], KINDS[6][2]])
def test_no_rows_have_a_graph(settings):
    value = Case(0, {}, False).value(settings)
    assert value.shape == (0,)
    value.sum().backward()


def test_the_most_likely_tokens_are_those_of_the_policys_vocabulary():
    case = Case(9, {}, False)
    top = case.teacher(6)
    logprobs = (case.states @ case.head[:300].T).log_softmax(-1).topk(6)
    assert torch.equal(top.ids, logprobs.indices)
    torch.testing.assert_close(top.logprobs, logprobs.values)
