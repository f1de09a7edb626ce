"""The same updates by rlobj alone: one process, each update as one table, plain transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tensordict import TensorDict
from torch import Tensor
from transformers import AutoModelForCausalLM

from rlobj import Objective, TokenBatch

LEARNING_RATE = 0.1


def scored(model: torch.nn.Module, data: TensorDict, rows: Sequence[int]) -> dict[str, Tensor]:
    """The columns of the trained tokens of some responses, each scored by itself."""
    logprobs, entropies, collisions = [], [], []
    for row in rows:
        tokens, mask = data["input_ids"].unbind()[row], data["loss_mask"].unbind()[row].bool()
        answer = len(mask)
        logits = model(tokens[None]).logits[0, -answer - 1 : -1][mask].log_softmax(-1)
        logprobs.append(logits.gather(1, tokens[-answer:][mask][:, None])[:, 0])
        entropies.append(-(logits.exp() * logits).sum(-1))
        collisions.append((2 * logits).exp().sum(-1))
    return {
        "logprobs": torch.cat(logprobs),
        "entropy": torch.cat(entropies),
        "collision": torch.cat(collisions),
    }


def whole_table(model: torch.nn.Module, data: TensorDict) -> TokenBatch:
    """The rollout, scored by the model."""
    with torch.no_grad():
        scores = scored(model, data, range(len(data)))
    masks = data["loss_mask"].unbind()
    groups = sorted(set(data["uid"]))
    sampler = [x[m.bool()] for x, m in zip(data["rollout_log_probs"].unbind(), masks, strict=True)]
    return TokenBatch(
        lengths=torch.stack([mask.sum() for mask in masks]),
        groups=torch.tensor([groups.index(uid) for uid in data["uid"]]),
        rewards=torch.stack([row.sum() for row in data["rm_scores"].unbind()]),
        **scores,
        old_logprobs=scores["logprobs"],
        old_entropy=scores["entropy"],
        old_collision=scores["collision"],
        sampler_logprobs=torch.cat(sampler),
    )


def gradients(
    policy: Path,
    objective: Objective,
    data: TensorDict,
    updates: Sequence[Sequence[int]],
    epochs: int = 1,
    selection: str = "current",
    columns: Mapping[str, Tensor] | None = None,
) -> list[dict[str, Tensor]]:
    """The gradient of each update.

    Args:
        policy: a Hugging Face folder.
        objective: of the run.
        data: the rollout.
        updates: the responses of each mini-batch.
        epochs: over all mini-batches; each is the next phase of the objective.
        selection: the policy that rules read.
        columns: of one's own, of the whole rollout.
    """
    model = AutoModelForCausalLM.from_pretrained(policy, attn_implementation="eager").float()
    table = whole_table(model, data).replace(columns=dict(columns or {}))
    [table] = objective.with_advantages([table])
    state = {**objective.observe([table]), "update": 0}
    found = []
    for epoch in range(epochs):
        phase = objective.phases[epoch % len(objective.phases)]
        for rows in updates:
            model.zero_grad()
            scores = scored(model, data, rows)
            now = table.select(rows)
            planned = now
            if selection == "current":
                planned = now.replace(**{name: x.detach() for name, x in scores.items()})
            plan = phase.plan([planned], state)
            phase.loss(now.replace(**scores), plan, 0).loss.backward()
            state["update"] += 1
            found.append({n: p.grad.clone() for n, p in model.named_parameters()})
            with torch.no_grad():
                for weight in model.parameters():
                    weight -= LEARNING_RATE * weight.grad
    return found


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of two gradients, relative to the largest entry."""
    largest = max(float(x.abs().max()) for x in theirs.values())
    return max(float((ours[n] - theirs[n]).abs().max()) for n in theirs) / largest
