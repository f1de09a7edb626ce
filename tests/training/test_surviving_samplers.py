"""A run whose sampler fails or is not the policy, and rollouts ahead of the updates."""

from __future__ import annotations

import shutil

import pyarrow.parquet as parquet
import pytest
from runs import metrics, same, weights
from tiny import eight_steps

from rlobj.base.errors import RunError
from rlobj.rewards.kinds import Graded
from rlobj.training import RunDirectory, run_training
from rlobj.training.loop.opening import open_parts
from rlobj.training.loop.step import run_step


@pytest.mark.slow
def test_a_sampler_that_fails_leaves_a_checkpoint_of_the_steps_before(
    policy, whole, tmp_path, monkeypatch
):
    """While it samples, and while it is given weights."""
    for place, done in (("sample", 4), ("sync", 5)):
        run = tmp_path / place
        with open_parts(eight_steps(policy), run) as parts:
            for _ in range(4):
                run_step(parts)

            def lost(*_, **__):
                raise RunError("the server is gone")

            monkeypatch.setattr(parts.sampler, place, lost)
            with pytest.raises(RunError, match="the server is gone"):
                run_step(parts)
            monkeypatch.undo()
        assert RunDirectory(run).latest().name == f"step-{done:06d}"
        assert metrics(run)[-1]["step"] == done
        run_training(eight_steps(policy), run, resume=True)
        assert same(weights(run), weights(whole))


def hotter(parts, monkeypatch):
    """The sampler draws at another temperature than it was asked for."""
    sample = parts.sampler.sample

    def other(prompts, *, settings, **rest):
        return sample(prompts, settings=settings.model_copy(update={"temperature": 2.0}), **rest)

    monkeypatch.setattr(parts.sampler, "sample", other)


@pytest.mark.parametrize("preset", ["stapo", "grpo", "dapo"])
def test_samples_of_another_distribution_stop_the_run_and_are_not_kept(
    policy, tmp_path, monkeypatch, preset
):
    """With a scoring pass, without one, and where no group is live."""
    config = eight_steps(policy, preset, training={"updates_per_step": 1})
    if preset == "dapo":
        config = eight_steps(policy, preset, sampling={"dynamic": {"max_batches": 1}})
        monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "", None))
    with open_parts(config, tmp_path / "run") as parts:
        run_step(parts)
        assert "sampler/logprob_gap" in metrics(tmp_path / "run")[-1]
        with monkeypatch.context() as patch:
            hotter(parts, patch)
            with pytest.raises(RunError, match="does not sample from the policy"):
                run_step(parts)
    with open_parts(config, tmp_path / "run", resume=True) as parts:
        for _ in range(2):
            run_step(parts)


def test_rollouts_ahead_are_vouched_for_by_samples_of_each_sync(policy, tmp_path, monkeypatch):
    config = eight_steps(policy, sampling={"async_depth": 1})
    with open_parts(config, tmp_path / "run") as parts:
        run_step(parts)
        hotter(parts, monkeypatch)
        with pytest.raises(RunError, match="does not sample from the policy"):
            run_step(parts)


@pytest.mark.slow
def test_a_stretched_schedule_does_not_train_on_rollouts_of_the_old_course(policy, tmp_path):
    config = eight_steps(policy, training={"schedule": "linear", "steps": 6, "warmup_steps": 0})
    longer = {"schedule": "linear", "steps": 12, "warmup_steps": 0}
    with open_parts(config, tmp_path / "run") as parts:
        for _ in range(5):
            run_step(parts)
    run_training(eight_steps(policy, training=longer), tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run")[-1]["step"] == 12


# Rollouts ahead of the updates.


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 3])
def test_samples_are_exactly_so_many_steps_old(policy, tmp_path, depth):
    config = eight_steps(policy, sampling={"async_depth": depth})
    run_training(config, tmp_path / "run")
    for step in range(8):
        file = tmp_path / "run" / "samples" / f"step-{step + 1:06d}.parquet"
        versions = set(parquet.read_table(file)["weight_version"].to_pylist())
        assert versions == {max(0, step - depth)}


@pytest.mark.slow
def test_a_run_with_rollouts_ahead_resumes_to_the_same_weights(policy, tmp_path):
    config = eight_steps(policy, sampling={"async_depth": 2})
    run_training(config, tmp_path / "whole")
    with open_parts(config, tmp_path / "cut") as parts:
        for _ in range(5):
            run_step(parts)
    newest = RunDirectory(tmp_path / "cut").latest()
    assert newest is not None
    assert sorted(p.name for p in (newest / "rollouts").iterdir()) == ["step-000003", "step-000004"]
    shutil.rmtree(tmp_path / "cut" / "rollouts")  # what the checkpoint holds is enough
    (tmp_path / "cut" / "rollouts").mkdir()
    run_training(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_rollouts_ahead_without_a_correction_are_warned_of(policy, tmp_path, caplog):
    config = eight_steps(policy, training={"steps": 1}, sampling={"async_depth": 1})
    run_training(config, tmp_path / "run")
    assert "without objective.mismatch" in caplog.text
