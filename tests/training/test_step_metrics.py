"""The lines of metrics.jsonl: groups without signal, and the change of the entropy."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tiny import tiny_config

from rlobj.training import run_training
from rlobj.training.loop import stages
from rlobj.training.loop.opening import open_parts
from rlobj.training.loop.step import run_step


@pytest.mark.parametrize("dynamic", [None, {"by": "reward", "max_batches": 2}])
def test_groups_without_signal_are_counted_over_all_sampled_groups(policy, tmp_path, dynamic):
    config = tiny_config(policy, "grpo", sampling={"dynamic": dynamic}, training={"steps": 1})
    with open_parts(config, tmp_path / "run") as parts:
        rollout = parts.pipeline.take(0)
        parts.pipeline.take = lambda _: rollout
        run_step(parts)
        line = parts.metrics
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
    after_update = stages.after_update

    def watched(parts: Any, index: int, batch: Any, observed: Any, metrics: Any) -> None:
        predicted[parts.learner.steps + 1].append(metrics.get("entropy/predicted_change", 0.0))
        after_update(parts, index, batch, observed, metrics)

    monkeypatch.setattr(stages, "after_update", watched)
    config = tiny_config(policy, preset, training={"steps": 3, "updates_per_step": updates})
    with open_parts(config, tmp_path / "run") as parts:
        change = parts.learner.entropy_change

        def measured(table: Any, sum_: float) -> dict[str, float]:
            means.append(float(table.entropy.double().nanmean()))
            return change(table, sum_)

        parts.learner.entropy_change = measured
        for _ in range(3):
            run_step(parts)
        lines = parts.run.lines()
    assert "entropy/measured_change" not in lines[0]
    assert "entropy/predicted_change" not in lines[0]
    for before, line in enumerate(lines[1:]):
        step = before + 1
        assert line["entropy/predicted_change"] == pytest.approx(math.fsum(predicted[step]))
        moved = means[step] - means[before]
        assert line["entropy/measured_change"] == pytest.approx(moved, rel=1e-4, abs=1e-6)
        assert predicted[step]
