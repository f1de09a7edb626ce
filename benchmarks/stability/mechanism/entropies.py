"""STARE's quadrants: the predicted and the measured change of entropy.

A small step of size η along the gradient of w·log π by a token's own logits changes the entropy at
its position by −η·w·s, s = π(l + H) − Σ_k π_k²(log π_k + H). The signs of A and s are four
quadrants: with A > 0, likely tokens (s ≥ 0) lower the entropy and surprising ones (s < 0) raise it;
with A < 0 it is the other way round. This is exact if each token has its own logits. A network
shares its parameters, so a token's update changes the entropy at all positions.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.stability.conditions import BASE, objective
from benchmarks.stability.mechanism.batches import Policy, Rollout, score, table_of
from benchmarks.stability.mechanism.gradients import logits_of, pull, slopes
from rlobj import TokenBatch
from rlobj.records.metrics import QUADRANTS


def quadrants(table: TokenBatch, advantages: Tensor) -> dict[str, Tensor]:
    """The tokens of each quadrant, bool [N]; tokens without an advantage are in none."""
    assert table.entropy_sensitivity is not None
    surprising = table.entropy_sensitivity < 0
    rows = [
        (advantages > 0) & ~surprising,
        (advantages > 0) & surprising,
        (advantages < 0) & ~surprising,
        (advantages < 0) & surprising,
    ]
    return dict(zip(QUADRANTS, rows, strict=True))


def own_logits(policy: Policy, rollout: Rollout, size: float) -> dict[str, dict[str, float]]:
    """The change of the summed entropy after a step of each quadrant on independent logits.

    Args:
        policy: the policy.
        rollout: graded responses.
        size: the largest change of a logit in the step.

    Returns:
        For each quadrant: the number of its tokens, the predicted and the measured change of the
        entropy of its tokens, in nats per unit step, and the largest error of a token, divided by
        the mean size of the predicted changes.
    """
    table, logits = table_of(policy, rollout), logits_of(policy, rollout).double()
    slope, plan = slopes(objective(BASE), table)
    assert table.entropy_sensitivity is not None
    targets = torch.tensor([i for _, ids in rollout.sequences(policy) for i in ids])
    full = logits.log_softmax(-1)
    gradient = -full.exp() * slope[:, None]
    gradient[torch.arange(len(slope)), targets] += slope
    eta = size / float(gradient.abs().max())
    change = (entropy_of(logits + eta * gradient) - entropy_of(logits)) / eta
    predicted = (-slope * table.entropy_sensitivity).double()
    found = {}
    for name, rows in quadrants(table, plan.advantages[0]).items():
        error = (change - predicted)[rows].abs()
        found[name] = {
            "tokens": int(rows.sum()),
            "predicted": float(predicted[rows].sum()),
            "measured": float(change[rows].sum()),
            "error": float(error.max() / predicted[rows].abs().mean()),
        }
    return found


def shared(policy: Policy, rollout: Rollout, size: float) -> dict[str, dict[str, float]]:
    """The change of the mean entropy after a step of each quadrant on the policy's parameters.

    Args:
        policy: the policy; unchanged afterwards.
        rollout: graded responses.
        size: the length of the step in the space of the parameters.

    Returns:
        For each quadrant: `predicted`, the change of the summed entropy of its tokens, −Σ w·s, as
        if logits were independent, in nats per unit step of the logits; `own` and `all`, the
        measured change of the mean entropy of its own tokens and of all tokens, in nats per unit
        step of the parameters along the quadrant's gradient; `first_order`, the scalar product of
        this gradient with that of the mean entropy of all tokens, to which `all` is close. A sum
        and a mean have different sizes: compare `all` / `predicted` between quadrants only.
    """
    table, sequences = table_of(policy, rollout), rollout.sequences(policy)
    slope, plan = slopes(objective(BASE), table)
    assert table.entropy_sensitivity is not None
    assert table.entropy is not None
    predicted = -slope * table.entropy_sensitivity
    by_entropy, found = entropy_gradient(policy, sequences), {}
    for name, rows in quadrants(table, plan.advantages[0]).items():
        gradient = pull(policy, sequences, slope * rows)
        eta = size / float(gradient.norm())
        change = _scores_after(policy, sequences, eta * gradient)["entropy"] - table.entropy
        found[name] = {
            "predicted": float(predicted[rows].sum()),
            "own": float(change[rows].mean() / eta),
            "all": float(change.mean() / eta),
            "first_order": float(gradient @ by_entropy),
        }
    return found


def influences(policy: Policy, rollout: Rollout, size: float) -> dict[str, Tensor]:
    """What each token's part of the update does to the mean entropy of all tokens, to first order.

    The influence of a token is slope·∇l·∇H̄. A small step along ±∇H̄ changes l by ±size·∇l·∇H̄/‖∇H̄‖,
    so that two forward passes give the influences of all tokens.

    Returns:
        predicted: −w·s/N, as if logits were independent, [N].
        measured: slope·∇l·∇H̄, [N].
        quadrant: the place in QUADRANTS; −1 = no advantage.
        planted: whether the token was planted.
    """
    table, sequences = table_of(policy, rollout), rollout.sequences(policy)
    slope, plan = slopes(objective(BASE), table)
    assert table.entropy_sensitivity is not None
    by_entropy = entropy_gradient(policy, sequences)
    along = size * by_entropy / by_entropy.norm()
    up, down = (
        _scores_after(policy, sequences, sign * along)["logprobs"].double() for sign in (1, -1)
    )
    slope_of_l = (up - down) / (2 * size) * float(by_entropy.norm())
    quadrant = torch.full_like(slope, -1, dtype=torch.int64)
    for i, rows in enumerate(quadrants(table, plan.advantages[0]).values()):
        quadrant[rows] = i
    return {
        "predicted": (-slope * table.entropy_sensitivity).double() / len(table),
        "measured": slope.double() * slope_of_l,
        "quadrant": quadrant,
        "planted": table.columns["planted"] > 0,
    }


def agreement(found: dict[str, Tensor]) -> dict[str, float]:
    """How well the prediction for independent logits holds for each token of a network.

    Returns:
        For all tokens and for each quadrant: the share of tokens whose two signs agree, and the
        same weighted by the size of the measured influence. `correlation` is over all tokens.
    """
    some = found["quadrant"] >= 0
    agrees = found["predicted"].sign() == found["measured"].sign()
    size = found["measured"].abs()
    both = torch.stack([found["predicted"][some], found["measured"][some]])
    result = {"correlation": float(torch.corrcoef(both)[0, 1])}
    sets = {"all": some, "planted": found["planted"] & some}
    sets |= {name: found["quadrant"] == i for i, name in enumerate(QUADRANTS)}
    for name, rows in sets.items():
        if bool(rows.any()):
            result[name] = float(agrees[rows].double().mean())
            result[f"{name}, weighted"] = float((agrees * size)[rows].sum() / size[rows].sum())
    return result


def entropy_of(logits: Tensor) -> Tensor:
    """H of each row, nats, [N]."""
    full = logits.log_softmax(-1)
    return -(full.exp() * full).sum(-1)


def entropy_gradient(policy: Policy, sequences: list[tuple[list[int], list[int]]]) -> Tensor:
    """The gradient of the mean entropy of all response tokens by all parameters, one vector."""
    mean = score(policy, sequences, grad=True)["entropy"].mean()
    parts = torch.autograd.grad(mean, list(policy.model.parameters()))
    return torch.cat([part.flatten() for part in parts])


def _scores_after(
    policy: Policy, sequences: list[tuple[list[int], list[int]]], step: Tensor
) -> dict[str, Tensor]:
    """The scores after a step of the parameters, which is undone."""
    before = copy.deepcopy(policy.model.state_dict())
    parameters = list(policy.model.parameters())
    vector_to_parameters(parameters_to_vector(parameters).detach() + step, parameters)
    scores = score(policy, sequences)
    policy.model.load_state_dict(before)
    return scores
