"""Edges of presets that golden numbers do not reach, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import awkward_batch, tokens

from rlobj import TokenBatch, load_preset
from rlobj.objectives.functional import gradient_norm


def weights_of(name: str, batch: TokenBatch) -> list[float]:
    return load_preset(name).objective.plan([batch]).weights[0].tolist()


def test_an_update_of_prime_rl_without_a_signal_is_skipped() -> None:
    """prime-rl ships no batch without a token that has an advantage."""
    batch = awkward_batch(1, groups=5)
    assert batch.rewards is not None
    batch = batch.replace(rewards=batch.rewards.where(batch.rewards.isnan(), 1.0))
    plan = load_preset("prime-rl").objective.plan([batch.select(range(20))])  # no group of one
    assert plan.empty
    assert plan.kept == 0


def test_fipo_counts_a_token_that_has_become_impossible_as_20_nats() -> None:
    """Twelve tokens with r = exp(2) before it outweigh it, as its release clamps l - l0."""
    gaps, old = [2.0] * 12 + [-60.0, 0.0] + [0.0] * 14, [-70.0] * 28
    batch = tokens([14, 14], [gap - 70 for gap in gaps], old_logprobs=old, rewards=[0.0, 1.0])
    assert weights_of("fipo", batch)[0] * 28 == pytest.approx(1.2)


@given(st.lists(st.floats(-8, 8), min_size=2, max_size=12), st.floats(0.01, 3), st.booleans())
def test_the_gradient_norm_is_that_of_the_gradient_by_the_logits(scores, size, positive) -> None:
    """‖∂J/∂logits‖ = |w|·(1 − 2π + Σ_k π_k²)^½, w = ω·A·r of the token."""
    logits = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    policy, advantage = logits.log_softmax(0), size if positive else -size
    batch = tokens([1], policy[:1], advantages=[advantage])  # type: ignore[arg-type]
    load_preset("justrl").objective(batch).loss.backward()  # of one token
    collision = policy.detach().exp().square().sum()
    norm = gradient_norm(policy.detach()[0], collision, torch.tensor(advantage))
    assert float(norm) == pytest.approx(float(logits.grad.norm()), rel=1e-6, abs=1e-7)


SEARCHED = [(2.3 + 0.2 * k, 0.95, 1.2 + 0.1 * k) for k in range(1, 9)]


@pytest.mark.parametrize(("cost", "floor", "cap"), [(2.39, 0.8, 1.2), *SEARCHED, (9, 0.95, 2.0)])
def test_bapo_takes_the_first_cap_that_suffices(cost: float, floor: float, cap: float) -> None:
    """A ratio of e with A = 1, one of 1 with A = -cost, and one of 0.9 with a small A < 0."""
    small = 1e-3
    batch = tokens(
        [1, 1, 1],
        [-1.0, -2.0, -2.0 + math.log(0.9)],
        old_logprobs=[-2.0, -2.0, -2.0],
        advantages=[1.0, -cost, -small],
    )
    expected = -(cap - cost - small * max(0.9, floor)) / 3
    assert load_preset("bapo").objective(batch).loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("change", "kept"), [(0.143, True), (0.147, False)])
def test_cppo_interpolates_the_quantile_of_changes(change: float, kept: bool) -> None:
    """Of 0.06, `change` and ten of 0, b is 0.9 of 0.06. The limit is 0.15 + b - 0.06 = 0.144."""
    changes = [0.06, change, *[0.0] * 10]
    batch = tokens([12], [math.log(0.5 + x) for x in changes], advantages=[1.0])
    batch = batch.replace(old_logprobs=torch.full((12,), math.log(0.5), dtype=torch.float64))
    assert [w > 0 for w in weights_of("cppo", batch)] == [True, kept, *[True] * 10]


@pytest.mark.parametrize(("q", "kept"), [(0.01, True), (0.02, False)])
def test_kpop_reads_a_probability_below_1e_6_as_1e_6(q: float, kept: bool) -> None:
    """The KLs are q*log(q/1e-6) and less: 0.082 and 0.178. Of 1e-12 they would be 0.22 and more."""
    read = {name: [math.log(q)] for name in ("old_logprobs", "sampler_logprobs")}
    batch = tokens([1], [math.log(1e-12)], advantages=[1.0], **read)
    assert [w > 0 for w in weights_of("kpop", batch)] == [kept]


@pytest.mark.parametrize("name", ["sdar", "rlsd", "tropd", "iw-opd"])
def test_a_teacher_that_excludes_a_token_gives_a_finite_float32_loss(name: str) -> None:
    table = awkward_batch(0, groups=5, dtype=torch.float32)
    table = table.select(table.decided_responses.nonzero()[:, 0])
    teacher = table.columns["teacher_logprob"].clone()
    teacher[::3] -= 500
    table = table.replace(
        columns=dict.fromkeys(("teacher_logprob", "hinted_logprob"), teacher),
        logprobs=table.logprobs.requires_grad_(),
    )
    loss = load_preset(name).objective(table).loss
    loss.backward()
    assert loss.isfinite()
    assert table.logprobs.grad is not None
    assert table.logprobs.grad.isfinite().all()
