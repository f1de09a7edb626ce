"""Presets equal what released packages compute; `golden/generate.py` calls the packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlobj import Objective, TokenBatch, load_preset
from rlobj.objectives.divisors import TokenMean

CASES = json.loads((Path(__file__).parent / "golden" / "released.json").read_text())
COLUMNS = (
    *("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropy", "collision"),
    "advantages",
)
SETTINGS: dict[str, dict[str, Any]] = {
    "fipo": {"drop": None},  # ms-swift does not drop responses
    "opsm": {"drop": "(advantage < 0) & ((old_logprob - logprob).mean(by='response') > 0.1)"},
}
"""Settings of a case that differ from the preset's."""


def kind(family: str) -> list[Any]:
    """The cases with this output, with readable ids."""
    found = [case for case in CASES if family in case]
    return [pytest.param(case, id=f"{case['name']}-{case['seed']}") for case in found]


def column(case: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(case[name], dtype=torch.float64)


def batch_of(case: dict[str, Any]) -> TokenBatch:
    columns = {name: column(case, name) for name in COLUMNS}
    columns["logprobs"].requires_grad_()
    columns["old_collision"] = columns.pop("collision")  # verl scores the rollout's policy
    return TokenBatch(
        lengths=torch.tensor(case["lengths"]),
        groups=torch.tensor(case["groups"]),
        rewards=column(case, "rewards"),
        columns={"teacher_logprob": column(case, "ref_logprobs")},
        **columns,
    )


def preset(name: str) -> Objective:
    return load_preset(name).objective.replace(**SETTINGS.get(name, {}))


@pytest.mark.parametrize("case", kind("loss"))
def test_loss_and_gradient_equal_the_package(case: dict[str, Any]) -> None:
    batch = batch_of(case)
    loss = preset(case["name"])(batch).loss
    loss.backward()
    assert batch.logprobs.grad is not None
    torch.testing.assert_close(loss.detach(), column(case, "loss"), atol=1e-8, rtol=0)
    torch.testing.assert_close(batch.logprobs.grad, column(case, "grad"), atol=1e-8, rtol=0)


@pytest.mark.parametrize("case", [c for c in kind("advantages") if "loss" not in c.values[0]])
def test_advantages_equal_the_package(case: dict[str, Any]) -> None:
    """Of what the surrogate reads; verl and SkyRL compute some of them in float32."""
    batch = batch_of(case).replace(advantages=None)
    if case["name"] == "gdpo":
        batch = batch.replace(reward_names=("accuracy", "format"), reward_weights=(1.0, 0.5))
    actual = preset(case["name"]).plan([batch]).advantages[0]
    torch.testing.assert_close(actual, column(case, "advantages"), atol=1e-6, rtol=0)


# Releases without a package that runs here: their equations. `test_sources` has more of them.


def released(name: str, equation: Any) -> None:
    """The preset has the gradient of Σ equation / tokens on every case's inputs."""
    objective = preset(name).replace(divisor=TokenMean(over="all"))
    for case in [case for case in CASES if "loss" in case]:
        batch = batch_of(case)
        objective(batch).loss.backward()
        plain = batch.logprobs.detach().requires_grad_()
        equation(batch.replace(logprobs=plain)).sum().div(len(batch)).backward()
        assert batch.logprobs.grad is not None
        assert plain.grad is not None
        torch.testing.assert_close(batch.logprobs.grad, plain.grad, atol=1e-12, rtol=0)


def test_w_reinforce_has_the_gradient_of_its_release() -> None:
    """verl/trainer/ppo/core_algos.py, compute_psr_nsr_outcome_advantage and compute_policy_loss."""

    def loss(batch: Any) -> Tensor:
        ratio, correct = (
            (batch.logprobs - batch.old_logprobs).exp(),
            batch.spread(batch.rewards) == 1,
        )
        advantages = 1.1 * correct.double() - 1
        return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2))

    released("w-reinforce", loss)


def test_topr_has_the_gradient_of_its_equation_8() -> None:
    def loss(batch: Any) -> Tensor:
        moved = batch.sum_by_response(batch.logprobs - batch.old_logprobs).detach()
        correct = batch.spread(batch.rewards) == 1
        weight = torch.where(correct, 1.0, -batch.spread(moved).exp().clamp(0, 1))
        return -weight * batch.logprobs

    released("topr", loss)


def test_entropy_shaped_has_the_gradient_of_grpo_with_more_advantage() -> None:
    def loss(batch: Any) -> Tensor:
        ratio, given = (batch.logprobs - batch.old_logprobs).exp(), batch.advantages
        advantages = given + torch.min(0.4 * batch.entropy, given.abs() / 2)
        return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)

    released("entropy-shaped", loss)
