"""Degenerate tables, on which an objective that divides by a spread or a mean has no value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rlobj.base.errors import BatchError
from rlobj.objectives.objective import Objective
from rlobj.objectives.tokens import LOGPROBS, PER_TOKEN, TokenBatch

TABLES: dict[str, dict[str, Any]] = {
    "rewards and lengths that differ": {},
    "equal rewards": {"rewards": (1,) * 8},
    "rewards of 0": {"rewards": (0,) * 8},
    "equal lengths": {"lengths": (3,) * 8},
    "one token in each response": {"lengths": (1,) * 8},
    "an empty response": {"lengths": (0, 1, 2, 5, 2, 4, 3, 1)},
    "a group of one response": {"groups": (0, 0, 0, 0, 1, 1, 1, 2)},
    "one response": {"groups": (0,), "lengths": (3,), "rewards": (1,)},
    "tokens with probability 1": {"certain": 2},
}
"""Each with what differs from the first one."""


def problems(objective: Objective) -> Iterator[str]:
    """The name and the error, with its row, of each of `TABLES` on which an objective fails.

    Advantages, plan, loss and gradient are computed. Code of your own is not run: an objective with
    a part of kind `custom` is not tried.
    """
    if "custom" in str(objective.model_dump(mode="json")):
        return
    for name, differences in TABLES.items():
        try:
            _try(objective, _table(objective, **differences))
        except BatchError as error:
            yield f"{name}: {error}"


def _try(objective: Objective, table: TokenBatch) -> None:
    state = objective.observe([table])
    for phase in objective.phases:
        plan = phase.plan([table], state)
        leaf = table.logprobs.clone().requires_grad_()
        phase.loss(table.replace(logprobs=leaf), plan).loss.backward()
        for row in [] if leaf.grad is None else (~leaf.grad.isfinite()).nonzero()[:1, 0].tolist():
            raise BatchError(f"the gradient is not finite at row {row} ({table.row(row)})")


def _table(
    objective: Objective,
    groups: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1),
    lengths: tuple[int, ...] = (3, 1, 2, 5, 2, 4, 3, 1),
    rewards: tuple[int, ...] = (1, 0, 0, 1, 1, 0, 0, 1),
    certain: int = 0,
) -> TokenBatch:
    """A table with all columns; every `certain`-th token has probability 1, 0 = none."""
    size, names = sum(lengths), tuple(objective.needs.rewards)
    base = torch.arange(size) % 5 / 4 + 0.25  # nats
    if certain:
        base[::certain] = 0
    columns: dict[str, Any] = dict.fromkeys(PER_TOKEN, base)
    columns |= {name: -columns[name] - 0.0 for name in LOGPROBS}
    columns["turn"] = torch.cat([torch.arange(n) // 2 for n in lengths])
    columns["turn_reward"] = columns["turn"] % 2
    columns["collision"] = (-columns["entropy"]).exp()
    if not certain:
        columns["old_logprobs"] = columns["logprobs"] - 0.01
    values_by_level = {  # whole numbers, which name populations
        "response": 1 + torch.arange(len(lengths))[:, None] % 2,
        "turn": 1 + columns["turn"] % 2,
        "token": 1 + torch.arange(size) % 3,
    }
    scores = {f"{name}_logprob": columns["old_logprobs"] for name in objective.scores}
    scores |= {f"{name}_entropy": base for name in objective.scores}
    scores |= dict.fromkeys(objective.divergences, base)
    reward_values = torch.tensor(rewards).float()
    return TokenBatch(
        lengths=torch.tensor(lengths),
        groups=torch.tensor(groups),
        ids=torch.arange(len(lengths)),
        rewards=reward_values[:, None].expand(-1, len(names)) if names else reward_values,
        reward_names=names or None,
        columns={name: values_by_level[level] for name, level in objective.columns.items()}
        | scores,
        **columns,
    )
