"""How much of the gradient planted tokens carry, and STAPO's bounds, by autograd."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.stability.conditions import objective
from benchmarks.stability.mechanism.batches import (
    POLICIES,
    Policy,
    plant,
    roll_out,
    score,
    table_of,
)
from benchmarks.stability.mechanism.gradients import bounds, carried, pull, slopes


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: pytest.FixtureRequest) -> Policy:
    return Policy.load(request.param, torch.float64)


@pytest.mark.parametrize("name", ["stapo", "grpo", "ar", "stare"])
def test_the_gradient_is_the_sum_of_those_of_planted_and_other_tokens(name: str) -> None:
    policy = Policy.load("prepared", torch.float64)
    rollout = plant(roll_out(policy, 0, prompts=4), 0.01, 0)
    sequences, table, of = rollout.sequences(policy), table_of(policy, rollout), objective(name)
    slope, plan = slopes(of, table, state := of.observe([table]))
    assert state.keys() == ({"W"} if name == "stare" else set())
    marks = table.columns["planted"] > 0
    parts = pull(policy, sequences, slope * marks) + pull(policy, sequences, slope * ~marks)
    columns = score(policy, sequences, grad=True)
    moved = table.replace(logprobs=columns["logprobs"], entropy=columns["entropy"])
    grads = torch.autograd.grad(of.loss(moved, plan, 0).loss, list(policy.model.parameters()))
    whole = -torch.cat([grad.flatten() for grad in grads])
    assert marks.any()
    assert (parts - whole).norm() < 1e-5 * whole.norm()  # the model's norms are in float32


def test_the_measured_norm_of_each_token_is_the_exact_one_and_above_stapos_bound(policy):
    rollout = plant(roll_out(policy, 0, prompts=8), 0.01, 0)
    found = bounds(policy, rollout, objective("dapo-loss"))
    lower, exact, measured = (found[name] for name in ("lower", "exact", "measured"))
    assert len(measured) > 500
    assert measured.dtype == torch.float64
    assert torch.allclose(measured, exact, rtol=1e-9, atol=1e-12)
    assert (lower <= measured + 1e-12).all()
    assert measured.max() < 2
    rare = found["prob"] < 0.002
    assert rare.any()
    assert (lower / exact)[rare].min() > 0.6
    assert (lower <= 0).double().mean() > 0.8  # the bound says nothing about most tokens


def test_stapos_bound_is_equal_to_the_norm_for_a_uniform_distribution_and_not_for_others() -> None:
    for logits in (torch.zeros(5), torch.tensor([3.0, 1.0, 0.0, 0.0, -1.0])):
        full = logits.double().log_softmax(-1)
        entropy = -(full.exp() * full).sum()
        gap = full.exp().square().sum() - torch.exp(-entropy)
        assert gap > -1e-12
        assert (gap < 1e-12) == (logits == logits[0]).all()


@pytest.mark.parametrize(("kind", "least"), [("prepared", 8), ("sharp", 10)])
def test_planted_tokens_carry_an_outsized_share_of_the_gradients_but_a_small_one(kind, least):
    policy = Policy.load(kind)
    rate, clean = 1e-3, roll_out(policy, 0, prompts=32)
    found = [carried(policy, clean, objective("dapo-loss"), rate, seed) for seed in range(2)]
    for each in found:
        assert each["tokens"] == round(rate * clean.tokens)
        assert least * rate < each["sum"] < 0.1
        assert each["norm"] <= math.sqrt(2)
        assert each["others"] > 0.9
    mean = {name: sum(each[name] for each in found) / 2 for name in ("parameters", "random")}
    assert mean["parameters"] > 3 * mean["random"]
    assert rate * 3 < mean["parameters"] < 0.2
