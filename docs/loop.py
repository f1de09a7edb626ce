"""Reinforcement learning in one file, without a trainer and without a configuration, to copy.

    python docs/loop.py [MODEL]

transformers has the model and `generate`, torch has AdamW, and rlobj has the objective. A tiny
policy, which is a part of rlobj, learns the sum of three digits in less than a minute on a CPU.
MODEL is another one: a folder, or a name on the Hugging Face hub.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlobj
from rlobj import Objective, TokenBatch
from rlobj.models.embedded import embedded_policy

OBJECTIVE = "20-entropy"  # another objective: "dapo", "stapo", "gspo", or a preset file of yours
STEPS = 40
PROMPTS, GROUP = 32, 8  # prompts of a step, and responses to each of them
UPDATES = 2  # of a step
MICRO = 64  # responses that go through the model together
MAX_TOKENS = 8
LEARNING_RATE = 5e-4

Rows = dict[str, Tensor]
"""Responses after their prompts: `tokens`, `read` (0 at padding) and `mask` (1 at the response's
tokens), [B, T]; `rewards`, `groups` and `ids`, [B]."""


def make_problem() -> tuple[str, str]:
    """A question and its answer."""
    digits = random.choices(range(10), k=3)
    return "+".join(map(str, digits)) + "=", str(sum(digits))


def reward(response: str, answer: str) -> float:
    """What a response is worth; NaN if that cannot be decided."""
    return float(response.strip() == answer)


@torch.no_grad()
def sample(model: Any, tokenizer: Any) -> Rows:
    """A rollout: GROUP responses to each of PROMPTS questions."""
    asked = [problem for _ in range(PROMPTS) for problem in [make_problem()] * GROUP]
    questions = [question for question, _ in asked]
    prompts = tokenizer(questions, padding=True, padding_side="left", return_tensors="pt")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    limits = {"do_sample": True, "top_k": 0, "max_new_tokens": MAX_TOKENS}
    tokens = model.generate(**prompts, **ends, **limits)
    responses = tokens[:, prompts["input_ids"].shape[1] :]
    ended = (responses == tokenizer.eos_token_id).long()
    mask = (ended.cumsum(1) - ended == 0).long()  # up to the end, which is a token, too
    texts = tokenizer.batch_decode(responses, skip_special_tokens=True)
    pairs = zip(texts, asked, strict=True)
    return {
        "tokens": tokens,
        "read": torch.cat([prompts["attention_mask"], mask], 1),
        "mask": torch.cat([torch.zeros_like(prompts["input_ids"]), mask], 1),
        "rewards": torch.tensor([reward(text, answer) for text, (_, answer) in pairs]),
        "groups": torch.arange(PROMPTS).repeat_interleave(GROUP),
        "ids": torch.arange(PROMPTS * GROUP),
    }


def split(rows: Rows, size: int) -> list[Rows]:
    """Parts of some responses each."""
    parts = zip(*(column.split(size) for column in rows.values()), strict=True)
    return [dict(zip(rows, part, strict=True)) for part in parts]


def score(model: Any, rows: Rows) -> TokenBatch:
    """A table with one row for each token of the responses: its log-prob and its entropy."""
    places = (rows["read"].cumsum(1) - 1).clamp(min=0)
    inputs = {"attention_mask": rows["read"], "position_ids": places}
    logits = model(input_ids=rows["tokens"], **inputs).logits[:, :-1]
    logprobs = logits.log_softmax(-1)
    drawn = logprobs.gather(-1, rows["tokens"][:, 1:, None]).squeeze(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    columns = {name: rows[name] for name in ("rewards", "groups", "ids")}
    return TokenBatch.from_padded(rows["mask"][:, 1:], drawn, entropy=entropy, **columns)


def score_again(model: Any, rows: Rows, table: TokenBatch) -> TokenBatch:
    """The table with the log-probs and entropies of the policy as it is now."""
    now = score(model, rows)
    return table.replace(logprobs=now.logprobs, entropy=now.entropy)


def learn(
    model: Any,
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    updates: Sequence[Sequence[Rows]],
    state: dict[str, Any],
) -> list[float]:
    """Learn from a rollout, given as the micro-batches of each update; returns the losses."""
    with torch.no_grad():
        tables = [score(model, rows) for micro_batches in updates for rows in micro_batches]
    tables = [t.replace(old_logprobs=t.logprobs, old_entropy=t.entropy) for t in tables]
    tables = objective.with_advantages(tables)
    state.update(objective.observe(tables, state))
    losses = []
    for phase in objective.phases:  # one, unless the objective is split
        rest = iter(tables)
        for micro_batches in updates:
            pairs = [(rows, next(rest)) for rows in micro_batches]
            with torch.no_grad():  # what is selected, and the divisor, are those of the update
                plan = phase.plan([score_again(model, *pair) for pair in pairs], state)
            losses.append(0.0)
            for pair in pairs:  # the losses of micro-batches add up: divide by nothing
                loss = phase.loss(score_again(model, *pair), plan).loss
                loss.backward()
                losses[-1] += loss.item()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if not plan.empty:
                optimizer.step()
            optimizer.zero_grad()
            state["update"] = state.get("update", 0) + 1
    return losses


def main() -> None:
    """Train, and print a line for each step."""
    torch.manual_seed(0)
    random.seed(0)
    name = sys.argv[1] if sys.argv[1:] else str(embedded_policy("addition"))
    model = AutoModelForCausalLM.from_pretrained(name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    objective = rlobj.load_preset(OBJECTIVE).objective.resolve(MAX_TOKENS)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, weight_decay=0.0)
    state = objective.init()
    for step in range(1, STEPS + 1):
        rollout = sample(model, tokenizer)
        updates = [split(part, MICRO) for part in split(rollout, PROMPTS * GROUP // UPDATES)]
        losses = learn(model, optimizer, objective, updates, state)
        shown = ", ".join(f"{loss:.4f}" for loss in losses)
        print(f"step {step}  reward {rollout['rewards'].mean():.3f}  losses {shown}")


if __name__ == "__main__":
    main()
