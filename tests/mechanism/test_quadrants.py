"""STARE's quadrants: predicted and measured changes of entropy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.stability.mechanism import entropies
from benchmarks.stability.mechanism.batches import POLICIES, Policy, Rollout, plant, roll_out

RAISES = {
    "positive_likely": False,
    "positive_surprising": True,
    "negative_likely": True,
    "negative_surprising": False,
}


@pytest.fixture(scope="module", params=POLICIES)
def case(request: pytest.FixtureRequest) -> tuple[Policy, Rollout]:
    policy = Policy.load(request.param, torch.float64)
    return policy, plant(roll_out(policy, 0, prompts=16), 0.01, 0)


@pytest.fixture(scope="module")
def coarse(case: tuple[Policy, Rollout]) -> dict[str, dict[str, float]]:
    return entropies.shared(*case, 1e-3)


@pytest.fixture(scope="module")
def tokens(case: tuple[Policy, Rollout]) -> dict[str, torch.Tensor]:
    return entropies.influences(*case, 1e-3)


def test_with_independent_logits_the_prediction_is_exact_to_first_order(case):
    coarse, fine = (entropies.own_logits(*case, size) for size in (1e-1, 1e-2))
    for name, raises in RAISES.items():
        found = fine[name]
        assert found["tokens"] > 10
        assert (found["predicted"] > 0) == raises
        assert found["measured"] == pytest.approx(found["predicted"], rel=0.01), name
    worst = [max(each["error"] for each in found.values()) for found in (coarse, fine)]
    assert 5 < worst[0] / worst[1] < 20  # the error falls with the step


def test_with_shared_parameters_a_quadrant_moves_its_own_tokens_as_predicted(coarse: Any) -> None:
    for name, found in coarse.items():
        assert (found["own"] > 0) == RAISES[name], name


def test_with_shared_parameters_all_tokens_follow_the_scalar_product_of_the_gradients(case, coarse):
    for name, found in entropies.shared(*case, 1e-4).items():
        assert abs(found["first_order"]) > 1e-4, name
        assert found["all"] == pytest.approx(found["first_order"], rel=0.1), name
        wide = abs(coarse[name]["all"] - found["first_order"])  # by chance it may be tiny
        wide = max(wide, 0.01 * abs(found["first_order"]))
        assert abs(found["all"] - found["first_order"]) < wide, name


def test_with_shared_parameters_the_sign_holds_for_most_tokens_and_not_for_all(tokens):
    found = entropies.agreement(tokens)
    assert 0.55 < found["all"] < 0.97
    assert found["correlation"] > 0.15


def test_the_influences_of_a_quadrants_tokens_add_up_to_that_of_its_update(tokens, coarse):
    for place, (name, found) in enumerate(coarse.items()):
        total = float(tokens["measured"][tokens["quadrant"] == place].sum())
        assert total == pytest.approx(found["first_order"], rel=0.02), name
