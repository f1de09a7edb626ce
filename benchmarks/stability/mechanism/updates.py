"""What one optimizer update does to the probability of planted tokens, under each objective.

All objectives get the same policy, the same rollout with planted tokens and the same optimizer, so
that only the objective differs. The optimizer is AdamW whose second moments have seen other
rollouts. It has no momentum, so that the objective's own gradient makes the step. AdamW ignores the
scale of an objective if it is always the same; so each gradient is scaled to norm 1 before. The
ratio is 1 in the first update, so clipping has no effect.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.stability.conditions import BASE, GROUPS, objective
from benchmarks.stability.mechanism.batches import Policy, Rollout, plant, roll_out, score, table_of
from benchmarks.stability.mechanism.gradients import pull, slopes
from benchmarks.stability.mechanism.rules import touched
from rlobj import Objective, TokenBatch
from rlobj.config.run_config import TrainingConfig

PERFECT = "perfect rule"
"""The base without exactly the planted tokens, which no rule can know in a real run."""
STUDIED = [*GROUPS["core"], *GROUPS["presets"], *GROUPS["without"], PERFECT]
WARM = 10
"""Gradients that AdamW's averages have seen before the update."""


def objective_of(condition: str) -> Objective:
    """The objective of a condition of the study, or the perfect rule."""
    if condition == PERFECT:
        return objective(BASE).replace(columns=("planted",), drop="planted > 0")
    return objective(condition)


@dataclass(frozen=True)
class Case:
    """What all objectives start from.

    Attributes:
        policy: the policy.
        rollout: with planted tokens.
        table: its tokens.
        averages: the state of AdamW after `WARM` gradients of the base at learning rate 0.
        learning_rate: of the update.
    """

    policy: Policy
    rollout: Rollout
    table: TokenBatch
    averages: dict[str, Any]
    learning_rate: float

    @classmethod
    def make(cls, policy: Policy, rate: float, seed: int, learning_rate: float) -> Case:
        """Sample a rollout of 32 x 8 responses, plant, and let AdamW see other rollouts.

        Args:
            policy: is not changed.
            rate: planted tokens for each token.
            seed: of everything.
            learning_rate: of the update.
        """
        optimizer = _optimizer(policy, 0.0)
        for number in range(WARM):
            other = roll_out(policy, 1000 * (seed + 1) + number, prompts=16)
            base = objective(BASE)
            slope, _ = slopes(base, table_of(policy, other))
            _apply(policy, optimizer, pull(policy, other.sequences(policy), slope))
        rollout = plant(roll_out(policy, seed, prompts=32), rate, seed)
        return cls(
            policy, rollout, table_of(policy, rollout), optimizer.state_dict(), learning_rate
        )


def updated(case: Case, of: Objective) -> dict[str, float]:
    """One update of an objective on the case; the policy is as before afterwards.

    Returns:
        digits, letters, planted: mean change of log π of the planted tokens, nats.
        valid: the same of all other tokens with A > 0.
        entropy: change of the mean entropy of all tokens, nats.
        norm: of the gradient of the parameters in the first phase.
    """
    before = copy.deepcopy(case.policy.model.state_dict())
    sequences = case.rollout.sequences(case.policy)
    optimizer = _optimizer(case.policy, case.learning_rate)
    optimizer.load_state_dict(copy.deepcopy(case.averages))
    optimizer.param_groups[0]["lr"] = case.learning_rate
    [table] = of.with_advantages([case.table])
    state, norms = of.observe([table]), []
    for phase in of.phases:
        slope, _ = slopes(phase, table, state)
        norms.append(_apply(case.policy, optimizer, pull(case.policy, sequences, slope)))
        columns = score(case.policy, sequences)
        table = table.replace(logprobs=columns["logprobs"], entropy=columns["entropy"])
    case.policy.model.load_state_dict(before)
    return _changes(case, table) | {"norm": norms[0]}


def compared(case: Case) -> dict[str, dict[str, float]]:
    """One update of each objective of the study.

    `touched` is the share of the tokens that an objective drops, reweights, switches or penalises.
    Objectives whose gradients have the same direction make the same update, which is made once.
    """
    made: list[tuple[Tensor, dict[str, float]]] = []
    found = {}
    for name in STUDIED:
        of = objective_of(name)
        [table] = of.with_advantages([case.table])
        slope = torch.cat([slopes(each, table, of.observe([table]))[0] for each in of.phases])
        slope = slope / slope.norm()
        same = [r for s, r in made if s.shape == slope.shape and torch.allclose(s, slope, 1e-4)]
        found[name] = same[0] if same else updated(case, of)
        made.append((slope, found[name]))
        found[name] = found[name] | {"touched": float(touched(of, case.table).double().mean())}
    return found


def _changes(case: Case, after: TokenBatch) -> dict[str, float]:
    change = after.logprobs - case.table.logprobs
    marks = case.table.columns["planted"] > 0
    letters = marks & _letters(case.rollout)
    assert after.advantages is not None
    assert after.entropy is not None
    assert case.table.entropy is not None
    chosen = {
        "planted": marks,
        "digits": marks & ~letters,
        "letters": letters,
        "valid": ~marks & (after.advantages > 0),
    }
    entropy = float(after.entropy.mean() - case.table.entropy.mean())
    return {name: float(change[rows].mean()) for name, rows in chosen.items()} | {
        "entropy": entropy
    }


def _letters(rollout: Rollout) -> Tensor:
    rows = zip(rollout.responses, rollout.ended, strict=True)
    return torch.tensor([c.isalpha() for text, end in rows for c in text + " " * end])


def _optimizer(policy: Policy, rate: float) -> torch.optim.AdamW:
    beta = TrainingConfig().betas[1]
    return torch.optim.AdamW(
        policy.model.parameters(), lr=rate, betas=(0.0, beta), weight_decay=0.0
    )


def _apply(policy: Policy, optimizer: torch.optim.AdamW, ascent: Tensor) -> float:
    """One step along a gradient of what is maximised, scaled to norm 1; the norm before."""
    parameters, norm = list(policy.model.parameters()), ascent.norm()
    parts = (-ascent / norm).split([p.numel() for p in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()
    optimizer.step()
    optimizer.zero_grad()
    return float(norm)
