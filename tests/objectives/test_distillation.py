"""Presets that read scores equal their sources, written as plain loops over responses and tokens.

The tables have empty responses, a group of one, equal rewards, and an undecided reward, which
counts only where a preset reads no reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from test_sources import clipped, loss_of, std, total
from torch import Tensor

from rlobj import Objective, TokenBatch, load_preset


@dataclass
class Response:
    """A response; `l` are log-probs with gradient, the others are numbers."""

    group: int
    reward: float
    l: list[Tensor]  # noqa: E741
    l0: list[float]
    reference: list[float]
    teacher: list[float]
    advantage: float = 0.0

    @property
    def gaps(self) -> list[float]:
        """The teacher's log-probs minus the policy's, without gradient."""
        return [t - float(own.detach()) for t, own in zip(self.teacher, self.l, strict=True)]


Rollout = list[Response]


def rollout_of(seed: int, score: str) -> TokenBatch:
    """13 responses in groups of four and one; `score` is the teacher's name."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 9, (13,), generator=random)
    rewards = torch.randint(0, 2, (13,), generator=random).double()
    rewards[:4], rewards[4:8] = 1.0, torch.tensor([1.0, 0.0, 1.0, 0.0])
    rewards[9] = math.nan
    lengths[4:6], lengths[10] = torch.tensor([3, 4]), 0
    size = int(lengths.sum())

    def draw(spread: float) -> Tensor:
        return spread * (torch.rand(size, generator=random, dtype=torch.float64) - 0.5)

    own = -6 * torch.rand(size, generator=random, dtype=torch.float64) - 1
    near = (own + draw(2), own + draw(2), (own + draw(12)).clamp(max=0))
    return TokenBatch(
        lengths=lengths,
        groups=torch.arange(13) // 4,
        rewards=rewards,
        logprobs=own,
        old_logprobs=near[0].clamp(max=0),
        ref_logprobs=near[1].clamp(max=0),
        columns={f"{score}_logprob": near[2]},
    )


def responses(batch: TokenBatch, logprobs: Tensor, score: str) -> Rollout:
    columns = [batch.old_logprobs, batch.ref_logprobs, batch.columns[f"{score}_logprob"]]
    lengths, rewards = batch.lengths.tolist(), batch.rewards
    assert rewards is not None
    tokens = [x.split(lengths) for x in (logprobs, *columns) if x is not None]
    return [
        Response(group, reward, list(own), *(x.tolist() for x in others))
        for group, reward, own, *others in zip(
            batch.groups.tolist(), rewards.tolist(), *tokens, strict=True
        )
    ]


def with_advantages(rollout: Rollout) -> Rollout:
    """The decided responses, with GRPO's advantages; a group of one has mean 0 and std 1."""
    sizes = {each.group: sum(x.group == each.group for x in rollout) for each in rollout}
    decided = [each for each in rollout if not math.isnan(each.reward)]
    for each in decided:
        rewards = [x.reward for x in decided if x.group == each.group]
        alone = sizes[each.group] == 1
        middle = 0.0 if alone else math.fsum(rewards) / len(rewards)
        each.advantage = (each.reward - middle) / ((1.0 if alone else std(rewards)) + 1e-6)
    return decided


def reinforce(update: Rollout, advantages: Callable[[Response], list[float]]) -> Any:
    """The mean over all tokens of -A·l."""
    return total(
        [-a * l for each in update for a, l in zip(advantages(each), each.l, strict=True)]  # noqa: E741
    )


def exopd(update: Rollout) -> Any:
    """RUCBM/G-OPD, dp_actor.py:524-530: minus `reverse_kl - reward_correction * lambda`."""

    def advantages(each: Response) -> list[float]:
        rows = zip(each.l, each.teacher, each.reference, strict=True)
        return [-((float(own.detach()) - base) - (t - base) * 1.25) for own, t, base in rows]

    return reinforce(update, advantages)


def tropd(update: Rollout) -> Any:
    """NeMo-RL's pull request 4011: log(α·π_T + (1 − α)·π) − log π, minus its mean over tokens."""

    def mixed(each: Response) -> list[float]:
        rows = zip(each.teacher, [float(own.detach()) for own in each.l], strict=True)
        return [math.log(0.2 * math.exp(t) + 0.8 * math.exp(own)) - own for t, own in rows]

    everything = [x for each in update for x in mixed(each)]
    middle = math.fsum(everything) / len(everything)
    return reinforce(update, lambda each: [x - middle for x in mixed(each)])


def iw_opd(update: Rollout) -> Any:
    """TRL 1.16, iw_opd_trainer.py, _compute_iw_opd_loss without rollout_logprobs."""

    def advantages(each: Response) -> list[float]:
        sizes = [abs(gap) for gap in each.gaps]
        whole = max(math.fsum(sizes), 1e-8)
        return [
            (1 + 0.5 * (1 - math.fsum(sizes[:t]) / whole)) * gap for t, gap in enumerate(each.gaps)
        ]

    return reinforce(update, advantages)


def grpo(update: Rollout, weights: Callable[[Response], list[float]]) -> Any:
    """GRPO's loss with A·w for A: the mean over responses of the means over their tokens."""
    losses = []
    for each in update:
        ratios = [(own - old).exp() for own, old in zip(each.l, each.l0, strict=True)]
        rows = zip(ratios, weights(each), strict=True)
        tokens = [clipped(ratio, w * each.advantage, (0.8, 1.2)) for ratio, w in rows]
        losses += [total(tokens)] if tokens else []
    return total(losses)


def rlsd(rollout: Rollout) -> Any:
    """ms-swift 4.6, rl_core/advantage.py, apply_rlsd_reweight."""

    def weights(each: Response) -> list[float]:
        sign = (each.advantage > 0) - (each.advantage < 0)
        ratios = [math.exp(sign * (t - old)) for t, old in zip(each.teacher, each.l0, strict=True)]
        return [(1 - 0.5) + 0.5 * min(max(ratio, 0.8), 1.2) for ratio in ratios]

    return grpo(with_advantages(rollout), weights)


def sdar(rollout: Rollout) -> Any:
    """ms-swift 4.6, rl_core/advantage.py, compute_sdar_loss, with the coefficient 0.1."""
    update = with_advantages(rollout)
    gated = [
        (t - own) / (1 + math.exp(-5 * gap))
        for each in update
        for t, own, gap in zip(each.teacher, each.l, each.gaps, strict=True)
    ]
    return grpo(update, lambda each: [1.0] * len(each.l)) + 0.1 * total(gated)


SOURCES: dict[str, Callable[[Rollout], Any]] = {
    "opd": lambda update: reinforce(update, lambda each: each.gaps),
    "opsd": lambda update: reinforce(update, lambda each: each.gaps),
    "exopd": exopd,
    "tropd": tropd,
    "iw-opd": iw_opd,
    "rlsd": rlsd,
    "sdar": sdar,
}


@pytest.mark.parametrize("name", sorted(SOURCES))
@pytest.mark.parametrize("seed", range(4))
def test_a_preset_with_a_score_equals_its_source_in_plain_loops(name: str, seed: int) -> None:
    objective = load_preset(name).objective
    [score] = objective.scores
    table = rollout_of(seed, score)
    loss, gradient = loss_of(objective, table, parts=1 + 2 * seed, seed=seed)
    leaf = table.logprobs.detach().requires_grad_()
    expected = SOURCES[name](responses(table, leaf, score))
    [slope] = torch.autograd.grad(expected, [leaf])
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-14)
    if name != "sdar":  # its gated term has another value: it has no teacher in it
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
    assert gradient.count_nonzero() > 10


def test_self_distillation_needs_no_other_model_and_distillation_asks_for_one() -> None:
    asked = {name: load_preset(name).config["scores"] for name in SOURCES}
    required = {name for name, scores in asked.items() if scores == {"teacher": "required"}}
    assert required == {"opd", "exopd", "tropd", "iw-opd"}
    for name in SOURCES.keys() - required:
        assert asked[name]["hinted"]["model"] == "policy"
        assert "{{ answer }}" in asked[name]["hinted"]["prompt"]


@pytest.mark.parametrize("name", ["sdar", "rlsd", "tropd", "iw-opd"])
def test_a_teacher_that_excludes_a_token_gives_a_finite_float32_loss(name: str) -> None:
    objective: Objective = load_preset(name).objective
    [score] = objective.scores
    table = rollout_of(0, score)
    teacher = table.columns[f"{score}_logprob"].float()
    teacher[::3] = -500.0
    columns = {x: getattr(table, x).float() for x in ("logprobs", "old_logprobs", "ref_logprobs")}
    table = table.replace(columns={f"{score}_logprob": teacher}, **columns)
    table = table.replace(logprobs=table.logprobs.requires_grad_())
    loss = objective(table).loss
    loss.backward()
    assert loss.isfinite()
    assert table.logprobs.grad is not None
    assert table.logprobs.grad.isfinite().all()
