"""Presets of autumn 2026 equal plain loops over responses and tokens, written from the papers."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import pytest
import torch
from strategies import awkward_batch, leaf, owned
from torch import Tensor

from rlobj import TokenBatch, load_preset

ZERO = torch.zeros((), dtype=torch.float64)


@dataclass(frozen=True)
class Token:
    """One token: log π with gradient, its value, and the log-probs of the other policies."""

    graph: Tensor
    policy: float
    old: float
    sampler: float
    teacher: float

    @property
    def ratio(self) -> Tensor:
        return (self.graph - self.old).clamp(-20, 20).exp()  # as verl does


@dataclass(frozen=True)
class Response:
    """A decided response; `group` has the rewards of its group's decided responses."""

    reward: float
    group: list[float]
    alone: bool
    tokens: list[Token]

    @property
    def centred(self) -> float:
        if self.alone:
            return self.reward
        return self.reward - statistics.fmean(self.group) if len(set(self.group)) > 1 else 0.0

    @property
    def normalized(self) -> float:
        std = statistics.stdev(self.group) if len(self.group) > 1 else 1.0
        return self.centred / (std + 1e-6)


def responses_of(table: TokenBatch) -> list[Response]:
    """The decided responses. A token that the sampler did not report has l0 in its place."""
    rewards, groups, found = table.rewards.tolist(), table.groups.tolist(), []
    names = ("logprobs", "old_logprobs", "sampler_logprobs")
    columns = [table.column(name, "the test").tolist() for name in names]
    columns.append(table.columns["teacher_logprob"].tolist())
    ends = table.lengths.cumsum(0).tolist()
    for row, (reward, end) in enumerate(zip(rewards, ends, strict=True)):
        if math.isnan(reward):
            continue
        tokens = []
        for t in range(end - int(table.lengths[row]), end):
            policy, old, sampler, teacher = (values[t] for values in columns)
            sampler = old if math.isnan(sampler) else sampler
            tokens.append(Token(table.logprobs[t], policy, old, sampler, teacher))
        members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[row]]
        decided = [r for r in members if not math.isnan(r)]
        found.append(Response(reward, decided, len(members) == 1, tokens))
    return found


def binary_kl(p: float, q: float) -> float:
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


def within(x: float) -> float:
    return min(max(x, 1e-6), 1 - 1e-6)


def flash_reinforce(responses: list[Response]) -> Tensor:
    baseline = statistics.fmean(response.reward for response in responses)
    full = [response for response in responses if response.tokens]
    loss, admitted = ZERO, 0
    for response in full:
        divergence = [
            binary_kl(within(math.exp(token.sampler)), within(math.exp(token.policy)))
            for token in response.tokens
        ]
        if statistics.fmean(divergence) <= 3e-3:
            admitted += 1
            for token in response.tokens:
                rho = math.exp(token.policy - token.sampler)
                share = (response.reward - baseline) / len(response.tokens) / len(full)
                loss = loss - share * rho * token.graph
    assert 0 < admitted < len(full)
    return loss


def gapo(responses: list[Response]) -> Tensor:
    number = sum(len(response.tokens) for response in responses)
    loss = ZERO
    for response in responses:
        high, k = 0.2, len(response.group)
        if response.reward > 0.5 and k > 1:
            c = sum(reward > 0.5 for reward in response.group)
            high = 0.2 + (0.28 - 0.2) * (k - c) / (k - 1)
        elif response.reward > 0.5:
            high = 0.2  # c = k = 1
        for token in response.tokens:
            clipped = token.ratio.clamp(0.8, 1 + high)
            value = torch.minimum(token.ratio * response.centred, clipped * response.centred)
            loss = loss - value / number
    return loss


def bpo(responses: list[Response]) -> Tensor:
    full = [response for response in responses if response.tokens]
    loss = ZERO
    for response in full:
        for token in response.tokens:
            omega = (1.1 - math.exp(token.sampler)) / (1.1 - math.exp(token.policy))
            if (omega < 0.8 and response.normalized < 0) or (
                omega > 1.2 and response.normalized > 0
            ):
                continue
            value = response.normalized * min(omega, 3) * token.graph
            loss = loss - value / len(response.tokens) / len(full)
    return loss


def acpo(responses: list[Response]) -> Tensor:
    number = sum(len(response.tokens) for response in responses)
    values = [
        (token.ratio * response.normalized).clamp(-2, 2)
        for response in responses
        for token in response.tokens
    ]
    return -torch.stack(values).sum() / number


def abc_grpo(responses: list[Response]) -> Tensor:
    full = [response for response in responses if response.tokens]
    loss = ZERO
    for response in full:
        values = [token.ratio.clamp(0.8, 1.2) * response.normalized for token in response.tokens]
        loss = loss - torch.stack(values).mean() / len(full)
    return loss


def opdvr(responses: list[Response]) -> Tensor:
    number = sum(len(response.tokens) for response in responses)
    loss = ZERO
    for response in responses:
        for token in response.tokens:
            gap = token.teacher - token.policy
            value = max(gap, 0) if response.reward > 0.5 else -max(-gap, 0)
            loss = loss - value * token.graph / number
    return loss


def prime_rl(responses: list[Response]) -> Tensor:
    trained = [response for response in responses if response.centred != 0]
    number = sum(len(response.tokens) for response in trained)
    loss = ZERO
    for response in trained:
        for token in response.tokens:
            if abs(math.exp(token.policy) - math.exp(token.sampler)) <= 0.3:
                rho = min(math.exp(token.policy - token.sampler), 1e4)
                loss = loss - response.centred * rho * token.graph / number
    return loss


LOOPS = {
    "abc-grpo": abc_grpo,
    "acpo": acpo,
    "bpo": bpo,
    "flash-reinforce": flash_reinforce,
    "gapo": gapo,
    "opdvr": opdvr,
    "prime-rl": prime_rl,
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", LOOPS)
def test_a_preset_equals_a_loop_over_tokens(name: str, seed: int) -> None:
    table = owned(awkward_batch(seed), seed)
    loop, preset = leaf(table), leaf(table)
    expected = LOOPS[name](responses_of(loop))
    expected.backward()
    loss = load_preset(name).objective(preset).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-10, atol=1e-13)
    decided = preset.decided
    gradient = loop.logprobs.grad[decided]
    assert len(gradient.unique()) > 10
    torch.testing.assert_close(preset.logprobs.grad[decided], gradient, rtol=1e-10, atol=1e-13)


def test_responses_of_any_size_are_clipped_by_acpo_alike() -> None:
    """clip(r·A, -2, 2) of A = 4, 0 and -4 at r = 1, and at r = 1/4, where it has a gradient."""
    logprobs = torch.tensor([-1.0, -1.0, -1.0, -3.0], dtype=torch.float64, requires_grad=True)
    table = TokenBatch(
        lengths=[1, 1, 1, 1],
        groups=[0, 0, 0, 0],
        logprobs=logprobs,
        old_logprobs=torch.tensor([-1.0, -1.0, -1.0, -3.0 + math.log(4)], dtype=torch.float64),
        advantages=torch.tensor([4.0, 0.0, -4.0, -4.0], dtype=torch.float64),
    )
    loss = load_preset("acpo").objective(table).loss
    loss.backward()
    assert loss.item() == pytest.approx(-(2 + 0 - 2 - 1) / 4)
    assert logprobs.grad.tolist() == pytest.approx([0, 0, 0, 1 / 4])
