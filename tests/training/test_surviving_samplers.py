"""A run whose sampler fails or is not the policy, and rollouts ahead of the updates."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
import torch
from forked import call_in_ranks
from runs import make_steps, metrics, open_trainer, same, weights
from tiny import eight_steps, save_tiny_policy, train_conversations

from rlobj import Turn
from rlobj.base.errors import ConfigError, RunError
from rlobj.base.processes import ENDING
from rlobj.ranks import RankFailed, agree
from rlobj.rewards.kinds import Graded
from rlobj.runs.checkpoints import newest_checkpoint
from rlobj.runs.configuration import read_stop
from rlobj.samplers import TransformersSampler
from rlobj.samplers.types import WaitEnded, WeightsLost
from rlobj.training import Callback, CallerInputs, run_training
from rlobj.training.loop.running import Interrupts
from rlobj.training.loop.step import run_step


@pytest.mark.slow
def test_a_sampler_that_fails_leaves_a_checkpoint_of_the_steps_before(
    policy, whole, tmp_path, monkeypatch
):
    """While it samples, and while it is given weights; whatever the error is."""
    for place, done, kind in (("sample", 4, ConfigError), ("sync", 5, OSError)):
        run = tmp_path / place
        with open_trainer(eight_steps(policy), run) as trainer:
            for _ in range(4):
                run_step(trainer)

            def lost(*_, kind=kind, **__):
                raise kind("the server is gone")

            monkeypatch.setattr(trainer.sampler, place, lost)
            with pytest.raises(RunError, match="the server is gone"):
                run_step(trainer)
            monkeypatch.undo()
        assert newest_checkpoint(run).name == f"step-{done:06d}"
        assert metrics(run)[-1]["step"] == done
        run_training(eight_steps(policy), run, resume=True)
        assert same(weights(run), weights(whole))


@pytest.mark.slow
def test_a_restarted_sampler_gets_the_weights_again_and_the_work_is_repeated(
    policy, tmp_path, monkeypatch, caplog
):
    """The run ends as one that was not disturbed; the weights are sent once more per loss."""
    config = eight_steps(policy, training={"steps": 2}, evaluation={"every": 1})
    run_training(config, tmp_path / "whole")
    pushes = {"sync": [1, 2], "sample": [0, 0, 0, 1, 2], "received": [0, 0, 0, 1, 2]}
    for place, expected in pushes.items():
        pushed, faults, run = [], [1, 2, 3], tmp_path / place
        with open_trainer(config, run) as trainer, monkeypatch.context() as patch:
            sync = trainer.sampler.sync

            def counted(weights, version, pushed=pushed, sync=sync):
                pushed.append(version)
                return sync(weights, version)

            usual = counted if place == "sync" else getattr(trainer.sampler, place)

            def lost(*given, faults=faults, usual=usual, **named):
                if faults:
                    faults.pop()
                    raise WeightsLost("the server was restarted")
                return usual(*given, **named)

            patch.setattr(trainer.sampler, "sync", counted)
            patch.setattr(trainer.sampler, place, lost)
            for _ in range(2):
                run_step(trainer)
        assert same(weights(run), weights(tmp_path / "whole"))
        assert metrics(run) == metrics(tmp_path / "whole")
        assert pushed == expected
    assert caplog.text.count("the server was restarted. It gets version") == 9


def one_rank_loses_its_sampler(rank, size, folder):
    """In step 2 its weights, so that both ranks push and sample again; in step 3 for good."""
    with open_trainer(eight_steps(Path(folder) / "policy"), Path(folder) / "run") as trainer:
        run_step(trainer)
        sample, sync, pushed = trainer.sampler.sample, trainer.sampler.sync, []
        errors = [WeightsLost("restarted"), None, ConfigError("another key")] if rank else []

        def failing(*given, **named):
            error = errors.pop(0) if errors else None
            if error:
                raise error
            return sample(*given, **named)

        trainer.sampler.sample = failing
        trainer.sampler.sync = lambda weights, version: (
            pushed.append(version),
            sync(weights, version),
        )
        run_step(trainer)
        assert pushed == [1, 2]
        with pytest.raises(RunError, match="another key" if rank else "failed on 1 other rank"):
            run_step(trainer)


@pytest.mark.slow
def test_all_ranks_push_again_or_save_when_one_loses_its_sampler(tmp_path):
    save_tiny_policy(tmp_path / "policy")
    call_in_ranks(one_rank_loses_its_sampler, 2, tmp_path)
    assert newest_checkpoint(tmp_path / "run").name == "step-000002"


def test_a_signal_ends_a_run_that_waits_for_its_sampler_in_order(policy, tmp_path, monkeypatch):
    """While it waits to sample, and to sync; it says nothing of a failure."""
    for place, done in (("sample", 1), ("sync", 2)):

        class Wait(Callback):
            def stepped(self, step, metrics, place=place):
                def wait(*_, **__):
                    os.kill(os.getpid(), signal.SIGTERM)
                    assert ENDING.wait(300)
                    raise WaitEnded("the server is gone")

                monkeypatch.setattr(TransformersSampler, place, wait)

        result = run_training(
            eight_steps(policy), tmp_path / place, CallerInputs(callbacks=[Wait()])
        )
        monkeypatch.undo()
        assert result.steps == done
        assert newest_checkpoint(tmp_path / place).name == f"step-{done:06d}"
        assert read_stop(tmp_path / place) is None
        assert not ENDING.is_set()


def test_a_signal_before_the_first_step_says_its_number():
    with Interrupts(), pytest.raises(KeyboardInterrupt) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
    assert caught.value.args == (signal.SIGTERM,)  # the program ends with 128 + 15


class OtherRanks:
    """A process group of which the others have these errors."""

    def __init__(self, *counts):
        self.counts = torch.tensor(counts)

    def sum(self, own):
        return own + self.counts


@pytest.mark.parametrize(
    ("own", "others", "kind"),
    [
        (None, (2, 0, 0, 2), WaitEnded),
        (None, (2, 0, 2, 0), WeightsLost),
        (None, (2, 0, 1, 1), RunError),
        (WaitEnded("gone"), (0, 0, 0, 0), WaitEnded),
        (WaitEnded("gone"), (1, 0, 1, 0), RunError),
        (None, (1, 1, 0, 0), RankFailed),
    ],
)
def test_the_ranks_have_one_kind_of_error(own, others, kind):
    with pytest.raises(RunError) as caught:
        agree(own, "sampling", OtherRanks(*others))
    assert type(caught.value) is kind


def hotter(trainer, monkeypatch):
    """The sampler draws at another temperature than it was asked for."""
    sample = trainer.sampler.sample

    def other(prompts, *, settings, **rest):
        return sample(prompts, settings=settings.model_copy(update={"temperature": 2.0}), **rest)

    monkeypatch.setattr(trainer.sampler, "sample", other)


@pytest.mark.parametrize("preset", ["stapo", "grpo", "dapo"])
def test_samples_of_another_distribution_stop_the_run(policy, tmp_path, monkeypatch, preset):
    """With a scoring pass, without one, and where no group is live."""
    config = eight_steps(policy, preset, training={"updates_per_step": 1})
    if preset == "dapo":
        config = eight_steps(policy, preset, sampling={"dynamic": {"max_batches": 1}})
        monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "", None))
    with open_trainer(config, tmp_path / "run") as trainer:
        run_step(trainer)
        assert "sampler/logprob_gap" in metrics(tmp_path / "run")[-1]
        with monkeypatch.context() as patch:
            hotter(trainer, patch)
            with pytest.raises(RunError, match="does not sample from the policy"):
                run_step(trainer)
    make_steps(config, tmp_path / "run", 2, resume=True)


class Echo:
    """An environment of two turns, whose rewards are all 0."""

    def reset(self, problem: Any) -> None:
        self.turns = 0

    def step(self, messages: Any) -> Turn:
        self.turns += 1
        return Turn("0=", done=self.turns == 2)


def test_conversations_without_a_signal_are_compared_as_the_policy_read_them(policy, tmp_path):
    dynamic = {"max_tokens": 20, "dynamic": {"max_batches": 1, "by": "reward"}}
    steps = {"training.steps": 1}
    result = train_conversations(policy, tmp_path / "run", Echo, sampling=dynamic, **steps)
    [line] = result.history
    assert line["reward/groups"] == 0
    assert line["turns/mean"] > 1.5
    assert line["sampler/logprob_gap"] < 1e-4


def test_of_rollouts_ahead_the_first_is_compared(policy, tmp_path, monkeypatch):
    config = eight_steps(policy, sampling={"async_depth": 1})
    with open_trainer(config, tmp_path / "run") as trainer:
        hotter(trainer, monkeypatch)
        with pytest.raises(RunError, match="does not sample from the policy"):
            run_step(trainer)


# Rollouts ahead of the updates.


def samples(run: Path, column: str) -> list[list[Any]]:
    """The values of a column of each step's samples, in the order of the responses."""
    files = sorted((run / "samples").glob("step-*.parquet"))
    return [parquet.read_table(file).sort_by("id")[column].to_pylist() for file in files]


@pytest.mark.slow
def test_a_run_with_rollouts_ahead_resumes_with_fresh_ones_on_the_same_problems(policy, tmp_path):
    """Samples are exactly two steps old; the first ones after a start are of its weights."""
    config = eight_steps(policy, sampling={"async_depth": 2})
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 5)
    assert newest_checkpoint(tmp_path / "cut").name == "step-000003"
    run_training(config, tmp_path / "cut", resume=True)
    for run, start in (("whole", 0), ("cut", 3)):
        versions = [{*each} for each in samples(tmp_path / run, "weight_version")]
        ahead = [{max(step - 2, start if step >= start else 0)} for step in range(8)]
        assert versions == ahead
    problems = [samples(tmp_path / run, "problem") for run in ("whole", "cut")]
    assert problems[0] == problems[1]
    assert metrics(tmp_path / "cut")[:4] == metrics(tmp_path / "whole")[:4]
