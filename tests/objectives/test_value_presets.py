"""Presets with a critic equal their releases' numbers, and plain loops written from the papers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import awkward_batch, rolled
from torch import Tensor

from rlobj import TokenBatch, load_preset

RELEASED = json.loads((Path(__file__).parent / "golden" / "values.json").read_text())
"""The `functions` of a `package`, run in float64 on the inputs of `golden/generate.py`."""


@pytest.mark.parametrize("case", RELEASED, ids=lambda case: f"{case['name']}-{case['seed']}")
def test_a_preset_equals_what_its_release_computes(case: dict[str, Any]) -> None:
    columns = {
        name: torch.tensor(numbers, dtype=torch.float64)
        for name, numbers in case.items()
        if isinstance(numbers, list) and name not in ("functions", "lengths")
    }
    policy = columns["logprobs"].clone().requires_grad_()
    new = columns["critic_new_value"].clone().requires_grad_()
    table = TokenBatch(
        lengths=torch.tensor(case["lengths"]),
        groups=torch.arange(len(case["lengths"])),
        logprobs=policy,
        rewards=columns["rewards"],
        old_logprobs=columns["old_logprobs"],
        sampler_logprobs=columns["sampler_logprobs"],
        columns={"critic_value": columns["critic_value"], "critic_new_value": new},
    )
    objective = load_preset(case["name"]).objective
    plan = objective.plan([table])
    close = {"rtol": 0, "atol": 1e-8}  # verl adds 1e-8 to the number of tokens
    torch.testing.assert_close(plan.advantages[0], columns["advantages"], **close)
    torch.testing.assert_close(plan.values[0]["critic_return"], columns["critic_return"], **close)
    value = objective.value_loss(table, plan)
    whole = objective.loss(table, plan).loss
    whole.backward()
    torch.testing.assert_close(policy.grad, columns["grad"], **close)
    torch.testing.assert_close(new.grad, columns["value_grad"], **close)
    assert value.loss.item() == pytest.approx(case["value_loss"], rel=1e-9)
    clipped = float(value.metrics["value/clip_fraction"])
    assert clipped == pytest.approx(case["clip_fraction"], rel=1e-6)
    if case["name"] == "ppo":  # bpco's release has 0 where it clips, with the same gradient
        assert (whole - value.loss).item() == pytest.approx(case["loss"], rel=1e-9)


ZERO = torch.zeros((), dtype=torch.float64)


def values_of(table: TokenBatch) -> dict[str, list[Any]]:
    """The columns as lists; a token that the sampler did not report has l0 in its place."""
    names = ("logprobs", "old_logprobs", "sampler_logprobs")
    columns = {name: table.column(name, "the test").tolist() for name in names}
    columns |= {name: table.columns[f"critic_{name}"].tolist() for name in ("value", "new_value")}
    return columns | {"graph": list(table.logprobs), "new": list(table.columns["critic_new_value"])}


def paths(table: TokenBatch) -> list[tuple[float, list[int]]]:
    """The reward of each decided rollout with tokens, and its tokens as the policy wrote them."""
    found: dict[int, tuple[float, list[tuple[int, int]]]] = {}
    names = table.ids if table.rollouts is None else table.rollouts
    for token, row in enumerate(table.responses.tolist()):
        reward = float(table.rewards[row])
        if not math.isnan(reward):
            place = (int(table.turn[token]), token)
            found.setdefault(int(names[row]), (reward, []))[1].append(place)
    return [(reward, [token for _, token in sorted(path)]) for reward, path in found.values()]


def rewards_of(table: TokenBatch, path: list[int], reward: float) -> list[float]:
    """r_t: the reward at the last token, or those of turns at the last one of each."""
    if table.turn_reward is None:
        return [0.0] * (len(path) - 1) + [reward]
    turns, given = table.turn.tolist(), table.turn_reward.tolist()
    after = [turns[token] for token in path[1:]] + [None]
    return [
        given[token] if turns[token] != following else 0.0
        for token, following in zip(path, after, strict=True)
    ]


def by_token(table: TokenBatch, alpha: float | None) -> tuple[dict, dict, list[list[int]]]:
    """A and Monte Carlo return of each token, γ = 1; λ = max(0, 1 − 1/(αL)), or 1 without α."""
    estimates: dict[int, float] = {}
    goals: dict[int, float] = {}
    tokens, value = [], values_of(table)["value"]
    for reward, path in paths(table):
        lam = 1.0 if alpha is None else max(0.0, 1 - 1 / (alpha * len(path)))
        ahead = after = rest = 0.0
        rewards = rewards_of(table, path, reward)
        for token, at in zip(reversed(path), reversed(rewards), strict=True):
            ahead, rest = at + after - value[token] + lam * ahead, at + rest
            estimates[token], goals[token], after = ahead, rest, value[token]
        tokens.append(path)
    return estimates, goals, tokens


def whitened(estimates: dict[int, float]) -> dict[int, float]:
    mean, variance = statistics.fmean(estimates.values()), statistics.variance(estimates.values())
    return {token: (a - mean) / math.sqrt(variance + 1e-8) for token, a in estimates.items()}


def ratio(table: TokenBatch, token: int, against: str) -> Tensor:
    return (table.logprobs[token] - table.column(against, "the test")[token]).clamp(-20, 20).exp()


def clipped(r: Tensor, a: float, low: float, high: float, dual: float = math.inf) -> Tensor:
    surrogate = torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)
    return surrogate if a >= 0 else torch.clamp(surrogate, min=dual * a if dual < 99 else -1e300)


def squared(new: Tensor, old: float, goal: float, clip: float = math.inf) -> Tensor:
    near = old + (new - old).clamp(-clip, clip)
    return torch.maximum((new - goal) ** 2, (near - goal) ** 2) / 2


def ppo(table: TokenBatch) -> tuple[Tensor, Tensor]:
    estimates, goals, _ = by_token(table, None)
    columns, n = values_of(table), len(goals)
    estimates = whitened(estimates)
    policy = sum(
        clipped(ratio(table, t, "old_logprobs"), a, 0.2, 0.2, 3.0) for t, a in estimates.items()
    )
    value = sum(squared(columns["new"][t], columns["value"][t], g, 0.5) for t, g in goals.items())
    return -policy / n, value / n


def vapo(table: TokenBatch) -> tuple[Tensor, Tensor]:
    estimates, goals, _ = by_token(table, 0.05)
    columns, n = values_of(table), len(goals)
    estimates = whitened(estimates)
    policy = sum(
        clipped(ratio(table, t, "old_logprobs"), a, 0.2, 0.28) for t, a in estimates.items()
    )
    correct = [t for reward, path in paths(table) if reward > 0.5 for t in path]
    imitation = -sum((table.logprobs[t] for t in correct), ZERO) / max(len(correct), 1)
    value = sum(squared(columns["new"][t], 0, g) for t, g in goals.items())
    return -policy / n + 0.1 * imitation, value / n


def bpco(table: TokenBatch) -> tuple[Tensor, Tensor]:
    estimates, goals, tokens = by_token(table, 0.4)
    columns, n = values_of(table), len(tokens)
    policy = ZERO
    for t, a in estimates.items():
        width = 0.2 / math.exp(columns["sampler_logprobs"][t])
        policy = policy + clipped(ratio(table, t, "sampler_logprobs"), a, width, width)
    value = sum(squared(columns["new"][t], columns["value"][t], g, 0.5) for t, g in goals.items())
    return -policy / n, value / n


def sao(table: TokenBatch) -> tuple[Tensor, Tensor]:
    estimates, goals, _ = by_token(table, 1.5)
    columns, n = values_of(table), len(goals)
    policy = ZERO
    for t, a in estimates.items():
        rho = math.exp(columns["logprobs"][t] - columns["sampler_logprobs"][t])
        policy = policy + (rho if 0.7 < rho < 6 else 0.0) * a * table.logprobs[t]
    value = sum(squared(columns["new"][t], 0, g) for t, g in goals.items())
    return -policy / n, value / n


LOOPS: dict[str, Callable[[TokenBatch], tuple[Tensor, Tensor]]] = {
    "ppo": ppo,
    "vapo": vapo,
    "bpco": bpco,
    "sao": sao,
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rollouts", [False, True])
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_preset_equals_a_loop_over_tokens(
    name: str, turns: bool, rollouts: bool, seed: int
) -> None:
    batch = awkward_batch(seed, groups=6, longest=40)
    batch = rolled(batch, seed) if rollouts else batch
    batch = batch if turns else batch.replace(turn_reward=None)
    batch = batch.select(batch.decided_responses.nonzero()[:, 0])  # loops have no NaN
    policy = batch.logprobs.clone().requires_grad_()
    new = batch.columns["critic_new_value"].clone().requires_grad_()
    table = batch.replace(logprobs=policy).with_columns({"critic_new_value": new})
    objective = load_preset(name).objective
    plan = objective.plan([table])
    expected = sum(LOOPS[name](table), ZERO)
    found = objective.loss(table, plan).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    gradients = [torch.autograd.grad(x, (policy, new)) for x in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-14)
