"""Advantages and losses of a value, against loops."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rlobj import ClippedSquared, Gae, Objective, TokenBatch, functional
from rlobj.base.errors import BatchError


def loop(
    rewards: Tensor, values: Tensor, lengths: Tensor, gamma: float, lam: Tensor, end: Tensor
) -> list[float]:
    """The sum over k of (γλ)^k·δ_{t+k}, term by term."""
    advantages, start = [], 0
    for response, length in enumerate(lengths.tolist()):
        after = [*values[start : start + length].tolist(), float(end[response])]
        deltas = [
            float(rewards[start + t]) + gamma * after[t + 1] - after[t] for t in range(length)
        ]
        decay = gamma * float(lam[response])
        for t in range(length):
            advantages.append(sum(decay**k * delta for k, delta in enumerate(deltas[t:])))
        start += length
    return advantages


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0, "by response"])
@pytest.mark.parametrize("cut", [False, True])
def test_advantages_are_the_sum_of_discounted_differences(seed, gamma, lam, cut):
    torch.manual_seed(seed)
    lengths = torch.randint(0, 7, (seed % 6,))
    rewards, values = torch.randn(2, int(lengths.sum()), dtype=torch.float64)
    shares = torch.rand(len(lengths), dtype=torch.float64)
    shares = shares if lam == "by response" else torch.full_like(shares, lam)
    end = torch.randn(len(lengths), dtype=torch.float64) * cut
    share = shares if lam == "by response" else lam
    advantages, returns = functional.gae(
        rewards, values, lengths, gamma, share, end if cut else None
    )
    expected = loop(rewards, values, lengths, gamma, shares, end)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(returns, advantages + values)


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(BatchError, match=r"rewards \[2\] and values \[3\]; expected \[3\]"):
        functional.gae(torch.zeros(2), torch.zeros(3), torch.tensor([3]))
    with pytest.raises(BatchError, match=r"lam is \[2\]; expected \[1\]"):
        functional.gae(torch.zeros(3), torch.zeros(3), torch.tensor([3]), 1.0, torch.zeros(2))


def test_the_loss_of_a_value_is_half_the_larger_squared_error():
    new, old, returns = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.4], [2.0, 2.0, 0.0]])
    loss = functional.value_loss(new, old, returns, clip=0.2)
    assert loss.tolist() == pytest.approx([0.5 * 1.8**2, 0.5 * 4, 0.5 * 0.25])
    assert functional.value_loss(new, old, returns).tolist() == pytest.approx([0.5, 2, 0.125])


def test_an_objective_adds_the_loss_of_its_value():
    values, new = torch.rand(2, 5, dtype=torch.float64)
    table = TokenBatch(
        lengths=torch.tensor([2, 0, 3]),
        groups=torch.tensor([0, 1, 2]),
        logprobs=-torch.rand(5, dtype=torch.float64),
        rewards=torch.tensor([1.0, torch.nan, 0.5]),
        columns={"critic_value": values, "critic_new_value": new.requires_grad_()},
    )
    settings: dict[str, Any] = {"lam": "1 - 1 / (0.8 * length)", "lam_value": 1.0, "whiten": False}
    objective = Objective(
        advantage=Gae(**settings), values=(ClippedSquared(clip=None, coefficient=0.5),)
    )
    plan = objective.plan([table])
    rewards = torch.tensor([0, 1.0, 0, 0, 0.5])
    lam = 1 - 1 / (0.8 * torch.tensor([2.0, 1.0, 3.0], dtype=torch.float64))
    expected = loop(rewards, values, table.lengths, 1.0, lam, torch.zeros(3))
    assert plan.advantages[0].tolist() == pytest.approx(expected)
    output = objective.value_loss(table, plan)
    goal = torch.tensor([1.0, 1, 0.5, 0.5, 0.5])
    assert output.loss.item() == pytest.approx(0.25 * (new - goal).square().mean().item())
    [gradient] = torch.autograd.grad(output.loss, new)
    assert gradient.tolist() == pytest.approx((0.5 * (new - goal) / 5).tolist())
    whole = objective.loss(table, plan).loss
    alone = objective.of_policy.loss(table, plan).loss
    assert whole.item() == pytest.approx((alone + output.loss).item())
