"""STAPO keeps the paper's gradient bounds; `test_sources` has its formula in plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import tokens

from rlobj import load_preset
from rlobj.objectives.divisors import SequenceSum
from rlobj.objectives.functional import gradient_norm

STAPO = load_preset("stapo").objective


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
