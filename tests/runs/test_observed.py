"""What an update observed: the policy's columns at its start, from passes that are made anyway."""

from __future__ import annotations

import copy

import pytest
import torch
from runs import open_trainer
from tiny import tiny_config

from rlobj.scoring import PolicyScorer, score_samples

COLUMNS = ("logprobs", "entropy", "collision", "entropy_sensitivity")


def observe(config, folder):
    """What each update of one step observed, with a copy of the policy before it."""
    found, models = [], []
    with open_trainer(config, folder) as trainer:
        learner, plan = trainer.learner, trainer.learner.plan

        def planned(phase, batch):
            models.append(copy.deepcopy(learner.model))
            return plan(phase, batch)

        learner.plan = planned
        rollout = trainer.pipeline.take(0)
        learner.train_on(rollout, lambda _, batch, observed, metrics: found.append(observed))
    return list(zip(found, models, strict=True))


@pytest.mark.parametrize(
    ("preset", "training"),
    [
        ("stapo", {"micro_batch_tokens": 10**6}),  # one forward pass scores and trains
        ("stapo", {"updates_per_step": 3}),  # scored anew for each update
        ("stapo", {"updates_per_step": 3, "selection": "old"}),
        ("dapo-loss", {"micro_batch_tokens": 400}),  # no scoring pass
        ("ar-lopti", {}),
    ],
    ids=str,
)
def test_columns_are_those_of_the_policy_at_the_start_of_the_update(
    policy, tmp_path, preset, training
):
    config = tiny_config(policy, preset, training={"steps": 1, **training})
    updates = observe(config, tmp_path / "run")
    count = training.get("updates_per_step", config.training.updates_per_step)
    assert len(updates) == count * len(config.objective.phases)
    for observed, model in updates:
        assert observed.plan.weights[0].shape == observed.logprobs.shape
        with torch.no_grad():
            wanted = {"entropy": True, "collision": True, "sensitivity": True}
            settings = {"temperature": config.sampling.temperature, **wanted}
            scores = score_samples(PolicyScorer(model), observed.sequences, **settings)
        known = ~observed.logprobs.isnan()
        assert known.any() != observed.plan.empty  # an update of no token needs no pass
        for name in COLUMNS:
            own, right = getattr(observed, name), getattr(scores, name)
            assert not own.requires_grad
            assert torch.equal(own.isnan(), ~known)
            torch.testing.assert_close(own[known], right[known], rtol=1e-4, atol=1e-5)


def test_tokens_that_went_through_no_pass_are_nan(policy, tmp_path):
    """Groups without signal are left out of an update whose rules read nothing of the policy."""
    config = tiny_config(policy, "dapo-loss", training={"steps": 1})
    [(observed, _)] = observe(config, tmp_path / "run")
    signal = observed.table.any_by_response(observed.plan.advantages[0] != 0)
    assert not signal.all()
    assert torch.equal(observed.logprobs.isnan(), ~observed.table.spread(signal))
