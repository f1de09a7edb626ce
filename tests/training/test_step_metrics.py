"""The lines of metrics.jsonl: groups without signal, and the change of the entropy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from runs import open_trainer
from tiny import tiny_config

from rlobj.training import run_training
from rlobj.training.loop.step import run_step
from rlobj.training.loop.trainer import Trainer


@pytest.mark.parametrize("dynamic", [None, {"by": "reward", "max_batches": 2}])
def test_groups_without_signal_are_counted_over_all_sampled_groups(policy, tmp_path, dynamic):
    config = tiny_config(policy, "grpo", sampling={"dynamic": dynamic}, training={"steps": 1})
    with open_trainer(config, tmp_path / "run") as trainer:
        rollout = trainer.pipeline.take(0)
        trainer.pipeline.take = lambda _: rollout
        run_step(trainer)
        line = trainer.metrics
    rewards: dict[int, set[float]] = {}
    for response in rollout.responses + rollout.dead:
        rewards.setdefault(response.group, set()).add(response.reward)
    silent = sum(len(values) == 1 for values in rewards.values())
    assert 0 < silent < len(rewards)
    assert line["groups/without_signal"] == silent
    assert line["groups/without_signal_share"] == silent / len(rewards)
    assert (line["sampling/dead_groups"] == 0) == (dynamic is None)


def test_a_group_of_one_is_not_without_signal(policy, tmp_path):
    config = tiny_config(policy, "reinforce-pp", sampling={"group_size": 1}, training={"steps": 1})
    [line] = run_training(config, tmp_path / "run").history
    assert line["groups/without_signal"] == 0


@pytest.mark.parametrize(("preset", "updates"), [("stapo", 2), ("dapo-loss", 1), ("ar-lopti", 1)])
def test_both_changes_of_the_entropy_belong_to_the_updates_of_the_step_before(
    policy, tmp_path, monkeypatch, preset, updates
):
    predicted: dict[int, list[float]] = {1: [], 2: [], 3: []}
    means: list[float] = []
    after_update = Trainer.after_update

    def watched(trainer: Any, index: int, batch: Any, observed: Any, metrics: Any) -> None:
        predicted[trainer.learner.steps + 1].append(metrics.get("entropy/predicted_change", 0.0))
        after_update(trainer, index, batch, observed, metrics)

    monkeypatch.setattr(Trainer, "after_update", watched)
    config = tiny_config(policy, preset, training={"steps": 3, "updates_per_step": updates})
    with open_trainer(config, tmp_path / "run") as trainer:
        change = trainer.learner.entropy_change

        def measured(table: Any, sum_: float) -> dict[str, float]:
            means.append(float(table.entropy.double().nanmean()))
            return change(table, sum_)

        trainer.learner.entropy_change = measured
        for _ in range(3):
            run_step(trainer)
        lines = trainer.run.lines()
    assert "entropy/measured_change" not in lines[0]
    assert "entropy/predicted_change" not in lines[0]
    for before, line in enumerate(lines[1:]):
        step = before + 1
        assert line["entropy/predicted_change"] == pytest.approx(math.fsum(predicted[step]))
        moved = means[step] - means[before]
        assert line["entropy/measured_change"] == pytest.approx(moved, rel=1e-4, abs=1e-6)
        assert predicted[step]
