"""How much of the gradient planted tokens carry, and STAPO's bounds of a token's gradient.

A token's *slope* is −∂loss/∂l, l = log π. Its gradient by its own logits has the norm
|slope|·sqrt(1 − 2π + Σ_k π_k²). The gradient of the parameters is the sum of slope·∇l over all
tokens, so that it can be divided between planted tokens and the others without an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks.stability.mechanism.batches import Policy, Rollout, plant, score, table_of
from rlobj import Objective, TokenBatch, functional
from rlobj.objectives.plan import Plan


def slopes(
    objective: Objective, table: TokenBatch, state: Mapping[str, Any] | None = None
) -> tuple[Tensor, Plan]:
    """−∂loss/∂l of each token, [N], and the plan of the update."""
    plan = objective.plan([table], state)
    logprobs = table.logprobs.detach().clone().requires_grad_()
    loss = objective.loss(table.replace(logprobs=logprobs), plan, 0).loss
    [slope] = torch.autograd.grad(loss, [logprobs], materialize_grads=True)
    return -slope, plan


def pull(policy: Policy, sequences: Any, slope: Tensor) -> Tensor:
    """Σ slope·∇l over all tokens by all parameters as one vector.

    Responses whose slopes are all 0 do not go through the model.
    """
    parts = slope.split([len(response) for _, response in sequences])
    chosen = [i for i, part in enumerate(parts) if bool((part != 0).any())]
    parameters = list(policy.model.parameters())
    if not chosen:
        return torch.cat([torch.zeros_like(p).flatten() for p in parameters])
    logprobs = score(policy, [sequences[i] for i in chosen], grad=True)["logprobs"]
    total = (torch.cat([parts[i] for i in chosen]) * logprobs).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(total, parameters)])


def carried(policy: Policy, rollout: Rollout, objective: Objective, rate: float, seed: int) -> dict:
    """What planted tokens carry of the gradient of an on-policy update.

    Returns:
        rate: planted tokens for each token.
        tokens: number of planted tokens.
        prob, entropy: their geometric mean probability, and mean entropy, nats.
        norm: their mean gradient norm by the logits for a slope of 1, and `norm_all` of all tokens.
        sum: share of Σ g, where g is the gradient norm by the token's logits.
        energy: share of Σ g².
        parameters: ‖Σ planted‖ / ‖Σ all‖ of the gradients by the parameters.
        others: ‖Σ others‖ / ‖Σ all‖.
        cosine: between the gradients of planted tokens and of the others.
        random: `parameters` of as many tokens, drawn from those with a positive advantage.
    """
    planted = plant(rollout, rate, seed)
    table, sequences = table_of(policy, planted), planted.sequences(policy)
    slope, plan = slopes(objective, table)
    marks = table.columns["planted"] > 0
    assert table.collision is not None
    unit = functional.gradient_norm(table.logprobs, table.collision, torch.ones_like(slope))
    norms = unit * slope.abs()
    own = pull(policy, sequences, slope * marks)
    rest = pull(policy, sequences, slope * ~marks)
    whole = (own + rest).norm()
    generator = torch.Generator().manual_seed(seed)
    positive = ((plan.advantages[0] > 0) & ~marks).nonzero()[:, 0]
    drawn = positive[torch.randperm(len(positive), generator=generator)[: int(marks.sum())]]
    some = torch.zeros_like(marks).index_fill(0, drawn, True)
    assert table.entropy is not None
    return {
        "rate": rate,
        "tokens": int(marks.sum()),
        "prob": float(table.logprobs[marks].mean().exp()),
        "entropy": float(table.entropy[marks].mean()),
        "norm": float(unit[marks].mean()),
        "norm_all": float(unit.mean()),
        "sum": float(norms[marks].sum() / norms.sum()),
        "energy": float(norms[marks].square().sum() / norms.square().sum()),
        "parameters": float(own.norm() / whole),
        "others": float(rest.norm() / whole),
        "cosine": float(torch.nn.functional.cosine_similarity(own, rest, dim=0)),
        "random": float(pull(policy, sequences, slope * some).norm() / whole),
    }


def bounds(policy: Policy, rollout: Rollout, objective: Objective) -> dict[str, Tensor]:
    """STAPO's bounds of each token's gradient, and the norm that autograd measures, float64.

        |w|²(1 − 2π + e^{−H}) ≤ ‖∂J/∂logits‖² = |w|²(1 − 2π + Σ_k π_k²)

    The loss is the objective's own, on the logits of the model as they are.

    Returns:
        lower, exact, measured: the three squared norms divided by |w|², [N]; w = −∂loss/∂l. Tokens
            without a gradient are left out.
        prob, entropy: π and H of these tokens.
        planted: whether the token was planted.
    """
    table, logits = table_of(policy, rollout), logits_of(policy, rollout)
    plan = objective.plan([table])
    targets = torch.tensor([i for _, ids in rollout.sequences(policy) for i in ids])
    logits = logits.double().requires_grad_()
    logprobs = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    logprobs.retain_grad()
    loss = objective.loss(table.replace(logprobs=logprobs), plan, 0).loss
    loss.backward()
    assert logits.grad is not None
    assert logprobs.grad is not None
    w = logprobs.grad
    rows = w != 0
    full = logits.detach().log_softmax(-1)
    entropy, pi = -(full.exp() * full).sum(-1), logprobs.detach().exp()
    squared = w[rows].square()
    return {
        "lower": (1 - 2 * pi + torch.exp(-entropy))[rows],
        "exact": (1 - 2 * pi + full.exp().square().sum(-1))[rows],
        "measured": logits.grad.square().sum(-1)[rows] / squared,
        "prob": pi[rows],
        "entropy": entropy[rows],
        "planted": (table.columns["planted"] > 0)[rows],
    }


@torch.no_grad()
def logits_of(policy: Policy, rollout: Rollout) -> Tensor:
    """The logits before each response token, [N, V]."""
    rows = []
    for prompt, response in rollout.sequences(policy):
        logits = policy.model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
        rows.append(logits[len(prompt) - 1 : -1])
    return torch.cat(rows)
