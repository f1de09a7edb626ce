"""The trainer of a run: what a caller sets or hands in is what the steps work with."""

from __future__ import annotations

import pytest
from runs import metrics
from tiny import tiny_config

from rlobj.base.errors import ConfigError
from rlobj.scoring import PolicyScorer
from rlobj.training import CallerInputs, run_training
from rlobj.training.loop.opening import open_trainer
from rlobj.training.rollouts.collector import Collector


def test_a_collector_and_a_scorer_are_handed_in(policy, tmp_path):
    """The scorer serves policy and reference, and both give the numbers of the usual run."""
    penalties = {"penalties": [{"kind": "kl", "coefficient": 0.1}]}
    config = tiny_config(policy, "grpo", objective=penalties, training={"steps": 2})
    run_training(config, tmp_path / "usual")
    collected, scored = [], []

    class Mine(Collector):
        def collect(self, step):
            collected.append(step)
            return super().collect(step)

    def scorer(model, packed):
        scored.append(model)
        return PolicyScorer(model, packed)

    run_training(config, tmp_path / "own", CallerInputs(collector=Mine, scorer=scorer))
    assert metrics(tmp_path / "own") == metrics(tmp_path / "usual")
    assert (collected, len(scored)) == ([0, 1], 2)


def test_a_rollout_is_trained_on_without_a_step_around_it(policy, tmp_path):
    """What a measurement needs: a learner and a rollout."""
    config = tiny_config(policy, "stapo", training={"steps": 1})
    run_training(config, tmp_path / "whole")
    [whole] = metrics(tmp_path / "whole")
    seen = []
    with open_trainer(config, tmp_path / "run") as trainer:
        rollout = trainer.pipeline.take(0)
        found = trainer.learner.train_on(rollout, lambda *update: seen.append(update))
    assert [(index, metrics == found) for index, _, _, metrics in seen] == [(0, False)]
    assert all(whole[name] == value for name, value in found.items() if name in whole)
    assert found["loss/total"] == whole["loss/total"]


def test_max_tokens_that_leave_no_room_for_a_prompt_are_refused(policy, tmp_path):
    config = tiny_config(policy, sampling={"max_tokens": 1024})
    message = r"sampling\.max_tokens=1024 leaves no room .* context is 128 tokens"
    with pytest.raises(ConfigError, match=message):
        run_training(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
