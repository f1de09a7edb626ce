"""STAPO equals its formula in plain Python floats, and keeps the paper's gradient bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import leaf, tokens

from rlobj import TokenBatch, load_preset
from rlobj.objectives.divisors import SequenceSum
from rlobj.objectives.functional import gradient_norm

STAPO = load_preset("stapo").objective
LOW, HIGH, TAU_P, LOW_SHARE, EPSILON = 0.2, 0.28, 0.002, 0.8, 1e-6


def reference(batch: TokenBatch) -> tuple[list[bool], float, list[float]]:
    """(kept, loss, gradient) computed with loops over responses and tokens."""
    assert batch.rewards is not None
    assert batch.entropy is not None
    lengths, groups = batch.lengths.tolist(), batch.groups.tolist()
    rewards, entropies = batch.rewards.tolist(), batch.entropy.tolist()
    new, old = batch.logprobs.tolist(), batch.column("old_logprobs", "").tolist()

    advantages = []
    for i, length in enumerate(lengths):
        group = [r for r, g in zip(rewards, groups, strict=True) if g == groups[i]]
        mean = sum(group) / len(group)
        variance = sum((r - mean) ** 2 for r in group) / (len(group) - 1)
        flat = len(set(group)) == 1
        advantage = 0.0 if flat else (rewards[i] - mean) / (math.sqrt(variance) + EPSILON)
        advantages += [advantage] * length

    ranked = sorted(entropies)
    tau_h = ranked[math.ceil(LOW_SHARE * len(ranked)) - 1]
    kept = [
        not (advantage > 0 and math.exp(logprob) < TAU_P and entropy <= tau_h)
        for advantage, logprob, entropy in zip(advantages, new, entropies, strict=True)
    ]
    loss, gradient = 0.0, []
    for keep, advantage, logprob, before in zip(kept, advantages, new, old, strict=True):
        ratio = math.exp(logprob - before)
        clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
        held = clipped * advantage < ratio * advantage
        slope = 0.0 if held or not keep else ratio * advantage
        loss -= keep * min(ratio * advantage, clipped * advantage) / sum(kept)
        gradient.append(-slope / sum(kept))
    return kept, loss, gradient


@pytest.mark.parametrize("seed", range(6))
def test_the_preset_equals_the_formula_of_the_paper_for_each_token(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 12, (16,), generator=random)
    lengths[:4] = 5
    total = int(lengths.sum())
    old = -torch.rand(total, generator=random, dtype=torch.float64) * 9
    batch = leaf(
        TokenBatch(
            lengths=lengths,
            groups=torch.arange(16) // 4,
            rewards=torch.tensor([1.0, 0, 0, 1] * 3 + [1.0] * 4, dtype=torch.float64),
            logprobs=(old + torch.randn(total, generator=random).double() * 0.3).clamp(max=0),
            old_logprobs=old,
            # coarse: several tokens share the entropy at the cut
            entropy=torch.randint(0, 8, (total,), generator=random).double() / 4,
        )
    )
    kept, loss, gradient = reference(batch)
    output = STAPO(batch)
    output.loss.backward()
    assert (output.weights != 0).tolist() == kept
    assert 0 < kept.count(False) < total / 4
    assert output.loss.item() == pytest.approx(loss, rel=1e-12)
    assert batch.logprobs.grad is not None
    assert batch.logprobs.grad.tolist() == pytest.approx(gradient, rel=1e-12, abs=1e-18)


def test_loss_and_gradient_of_five_tokens_equal_values_by_hand() -> None:
    """Of two rare tokens with A > 0, only the one with low entropy is dropped; 4 are counted.

    The cut is the ceil(0.8·5) = 4th smallest entropy, 2.0, which two tokens share.
    """
    batch = tokens(
        [3, 2],
        [math.log(p) for p in (0.001, 0.001, 0.5, 0.001, 0.9)],
        entropy=[2.0, 3.0, 1.0, 2.0, 0.5],
        advantages=[1.0, -1.0],
    )
    plan = STAPO.plan([batch])
    assert plan.weights[0].tolist() == [0, 0.25, 0.25, 0.25, 0.25]
    assert plan.metrics["objective/kept_fraction"] == 0.8
    assert STAPO(batch).loss.item() == pytest.approx(-(1 + 1 - 1 - 1) / 4)


@given(st.data())
def test_the_gradient_norm_of_the_logits_is_within_the_bounds_of_the_paper(
    data: st.DataObject,
) -> None:
    """|w|²(1 − 2π + e^{−H}) ≤ ‖∂J/∂logits‖² = |w|²(1 − 2π + Σ_k π_k²), w = ω·A·r of the token."""
    vocabulary = data.draw(st.integers(2, 12))
    scores = st.lists(st.floats(-8, 8), min_size=vocabulary, max_size=vocabulary)
    logits = torch.tensor(data.draw(scores), dtype=torch.float64, requires_grad=True)
    token = data.draw(st.integers(0, vocabulary - 1))
    advantage = data.draw(st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3))
    policy = logits.log_softmax(0)
    batch = tokens([1], policy[token : token + 1], advantages=[advantage])  # type: ignore[arg-type]
    objective = STAPO.replace(drop=None, divisor=SequenceSum())  # one response: J is its one term
    (-objective(batch).loss).backward()
    assert logits.grad is not None
    squared = float(logits.grad.square().sum())
    log_pi = policy.detach()
    pi = log_pi.exp()
    w, collision, entropy = advantage, pi.square().sum(), -(pi * log_pi).sum()
    exact = w**2 * (1 - 2 * pi[token] + collision)
    assert squared == pytest.approx(float(exact), rel=1e-9, abs=1e-14)
    lower = w**2 * (1 - 2 * pi[token] + torch.exp(-entropy))
    assert float(lower) <= squared * (1 + 1e-9) + 1e-13
    norm = gradient_norm(log_pi[token], collision, torch.tensor(w))
    assert float(norm) == pytest.approx(math.sqrt(squared), rel=1e-6, abs=1e-7)
