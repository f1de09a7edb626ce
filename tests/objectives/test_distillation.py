"""Presets that read scores equal their sources, written as plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import test_late_sources
import test_sources
import torch
from strategies import COMPARED_WITH_LOOPS
from test_sources import Response, Rollout, clipped, equal, loss_of, normalized, responses, total

from rlobj import Objective, TokenBatch, load_preset


def rollout_of(seed: int, objective: Objective) -> TokenBatch:
    """A teacher within a nat of the rollout's policy, from which the policy has moved far.

    Undecided responses are left out where they count, because their rows have no numbers.
    """
    table = test_sources.rollout_of(seed, "binary")
    moved = table.columns["teacher_logprob"] - table.columns["hinted_logprob"]
    teacher = (table.column("old_logprobs", "the test") + moved).clamp(max=0)
    table = table.replace(columns=dict.fromkeys(("teacher_logprob", "hinted_logprob"), teacher))
    if objective.reads_rewards:
        return table
    return table.select(table.decided_responses.nonzero()[:, 0])


def own(response: Response) -> list[float]:
    """The policy's log-probs, without gradient."""
    return [float(new.detach()) for new in response.l]


def gaps(response: Response) -> list[float]:
    return [t - new for t, new in zip(response.teacher, own(response), strict=True)]


def reinforce(update: Rollout, advantages: Callable[[Response], list[float]]) -> Any:
    """The mean over all tokens of -A·l."""
    return total(
        [-a * l for each in update for a, l in zip(advantages(each), each.l, strict=True)]  # noqa: E741
    )


def exopd(update: Rollout) -> Any:
    """RUCBM/G-OPD, dp_actor.py:524-530: minus `reverse_kl - reward_correction * lambda`."""

    def advantages(each: Response) -> list[float]:
        rows = zip(own(each), each.teacher, each.reference, strict=True)
        return [-((new - base) - (t - base) * 1.25) for new, t, base in rows]

    return reinforce(update, advantages)


def tropd(update: Rollout) -> Any:
    """NeMo-RL's pull request 4011: log(α·π_T + (1 − α)·π) − log π, minus its mean over tokens."""

    def mixed(each: Response) -> list[float]:
        rows = zip(each.teacher, own(each), strict=True)
        return [math.log(0.2 * math.exp(t) + 0.8 * math.exp(new)) - new for t, new in rows]

    everything = [x for each in update for x in mixed(each)]
    middle = math.fsum(everything) / len(everything)
    return reinforce(update, lambda each: [x - middle for x in mixed(each)])


def iw_opd(update: Rollout) -> Any:
    """TRL 1.16, iw_opd_trainer.py, _compute_iw_opd_loss without rollout_logprobs."""

    def advantages(each: Response) -> list[float]:
        sizes = [abs(gap) for gap in gaps(each)]
        whole = max(math.fsum(sizes), 1e-8)
        return [
            (1 + 0.5 * (1 - math.fsum(sizes[:t]) / whole)) * gap for t, gap in enumerate(gaps(each))
        ]

    return reinforce(update, advantages)


def grpo(update: Rollout, weights: Callable[[Response], list[float]]) -> Any:
    """GRPO's loss with A·w for A: the mean over responses of the means over their tokens."""
    losses = []
    for each in update:
        a = 0.0 if equal(each, update) else normalized(each, update)
        rows = zip(each.ratios, weights(each), strict=True)
        tokens = [clipped(ratio, w * a, (0.8, 1.2)) for ratio, w in rows]
        losses += [total(tokens)] if tokens else []
    return total(losses)


def rlsd(update: Rollout) -> Any:
    """ms-swift 4.6, rl_core/advantage.py, apply_rlsd_reweight."""

    def weights(each: Response) -> list[float]:
        a = 0.0 if equal(each, update) else normalized(each, update)
        sign = (a > 0) - (a < 0)
        ratios = [math.exp(sign * (t - old)) for t, old in zip(each.teacher, each.l0, strict=True)]
        return [(1 - 0.5) + 0.5 * min(max(ratio, 0.8), 1.2) for ratio in ratios]

    return grpo(update, weights)


def sdar(update: Rollout) -> Any:
    """ms-swift 4.6, rl_core/advantage.py, compute_sdar_loss, with the coefficient 0.1."""
    gated = [
        (t - new) / (1 + math.exp(-5 * gap))
        for each in update
        for t, new, gap in zip(each.teacher, each.l, gaps(each), strict=True)
    ]
    return grpo(update, lambda each: [1.0] * len(each.l)) + 0.1 * total(gated)


SOURCES: dict[str, Callable[[Rollout], Any]] = {
    "opd": lambda update: reinforce(update, gaps),
    "opsd": lambda update: reinforce(update, gaps),
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
    table = rollout_of(seed, objective)
    loss, gradient = loss_of(objective, table, parts=1 + 2 * seed, seed=seed)
    leaf = table.logprobs.detach().requires_grad_()
    expected = SOURCES[name](responses(table, leaf))
    [slope] = torch.autograd.grad(expected, [leaf])
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-14)
    if name != "sdar":  # its gated term has another value: it has no teacher in it
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-14)
    assert gradient.count_nonzero() > 5


def test_self_distillation_needs_no_other_model_and_distillation_asks_for_one() -> None:
    compared = {*SOURCES, *test_sources.SOURCES, *test_late_sources.SOURCES}
    assert compared == {*COMPARED_WITH_LOOPS}
    for name in SOURCES:
        scores = load_preset(name).config["scores"]
        if name in ("opd", "exopd", "tropd", "iw-opd"):
            assert scores == {"teacher": "required"}
        else:
            assert scores["hinted"]["model"] == "policy"
            assert "{{ answer }}" in scores["hinted"]["prompt"]


@pytest.mark.parametrize("name", ["sdar", "rlsd", "tropd", "iw-opd"])
def test_a_teacher_that_excludes_a_token_gives_a_finite_float32_loss(name: str) -> None:
    objective = load_preset(name).objective
    table = rollout_of(0, objective)
    teacher = table.columns["teacher_logprob"].float()
    teacher[::3] -= 500
    columns = {x: getattr(table, x).float() for x in ("logprobs", "old_logprobs", "entropy")}
    scores = dict.fromkeys(table.columns, teacher)
    table = table.replace(columns=scores, **columns)
    table = table.replace(logprobs=table.logprobs.requires_grad_())
    loss = objective(table).loss
    loss.backward()
    assert loss.isfinite()
    assert table.logprobs.grad is not None
    assert table.logprobs.grad.isfinite().all()
