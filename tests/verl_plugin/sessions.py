"""Sessions of several responses, as an agent loop of verl may return them, and a loop by hand."""

from __future__ import annotations

from pathlib import Path

import torch
from alone import scored
from harness import FIELDS, RESPONSES, VOCABULARY, changed, rollout
from tensordict import TensorDict
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils

PROMPTS = 4
SESSIONS = (0, 0, 1, 2, 1, 0, 3, 2)  # of a prompt's eight responses; two processes share most


def names() -> list[tuple[str, int, int]]:
    """The uid, session and index of each response."""
    found: list[tuple[str, int, int]] = []
    for row in range(RESPONSES):
        uid, session = f"{row % PROMPTS:08x}", SESSIONS[row // PROMPTS]
        found.append((uid, session, sum(name[:2] == (uid, session) for name in found)))
    return found


def several() -> TensorDict:
    """A rollout of 16 sessions with one to three rows; a row and a whole session are empty."""
    data, rows = rollout(), names()
    scores, masks = [], list(data["loss_mask"].unbind())
    for row, (uid, session, _) in enumerate(rows):
        score = torch.zeros(len(masks[row]))
        score[-1] = float((int(uid, 16) + session) % 3 == 0)
        scores.append(score)
    for row in (9, 12, 28):  # 12 and 28 are the session 2 of the first prompt
        masks[row] = torch.zeros_like(masks[row])
    data = changed(data, rm_scores=scores, loss_mask=masks, response_mask=masks)
    data = data.exclude("uid", "session_id")
    tensordict_utils.assign_non_tensor_stack(data, "uid", [uid for uid, _, _ in rows])
    tensordict_utils.assign_non_tensor_stack(data, "session_id", [name[1] for name in rows])
    return data


def branched(earlier: int, later: int) -> TensorDict:
    """The same, but the later row repeats the earlier one, and goes its own way in its middle."""
    data = several()
    names = (*FIELDS, "rm_scores", "rollout_log_probs")
    rows = {name: list(data[name].unbind()) for name in names}
    for field in rows.values():
        field[later] = field[earlier].clone()
    own = len(rows["responses"][later]) // 2
    for name in ("responses", "input_ids"):
        new = rows[name][later][-own:]
        new.copy_(3 + (new - 2) % (VOCABULARY - 3))
    return changed(data, **rows)


def by_hand(policy: Path, data: TensorDict) -> dict[str, torch.Tensor]:
    """The gradient of − 1/B Σ_i A_i/|o_i| Σ_t log π(o_t): i is a session, on the first update."""
    model = AutoModelForCausalLM.from_pretrained(policy, attn_implementation="eager").float()
    sessions: dict[str, dict[int, list[int]]] = {}
    for row, (uid, session) in enumerate(zip(data["uid"], data["session_id"], strict=True)):
        sessions.setdefault(uid, {}).setdefault(session, []).append(row)
    trained = [int(mask.sum()) for mask in data["loss_mask"].unbind()]
    rewards = [float(row.sum()) for row in data["rm_scores"].unbind()]
    loss, counted = torch.zeros(()), 0
    for group in sessions.values():
        of_group = torch.tensor([rewards[rows[0]] for rows in group.values()])
        advantages = (of_group - of_group.mean()) / (of_group.std() + 1e-6)
        for rows, advantage in zip(group.values(), advantages, strict=True):
            if tokens := sum(trained[row] for row in rows):
                loss = loss - advantage * scored(model, data, rows)["logprobs"].sum() / tokens
                counted += 1
    (loss / counted).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
