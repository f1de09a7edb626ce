"""What happens to a run that is killed, interrupted, or whose disk or numbers go bad."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from runs import finish, metrics, program, same, wait_for_step, weights, write_config
from safetensors.torch import load_file
from tiny import save_tiny_policy, tiny_config

from rlobj.errors import ConfigError, RunError
from rlobj.presets import merge
from rlobj.rewards.kinds import Graded
from rlobj.surrogates import Surrogate
from rlobj.tokens import TokenBatch
from rlobj.training import RunDirectory, train
from rlobj.training.trainer import Trainer


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> Path:
    return save_tiny_policy(tmp_path_factory.mktemp("policy"))


def config_of(policy, preset="stapo", **sections):
    quick = {
        "training": {"steps": 8, "updates_per_step": 2},
        "checkpoint": {"every": 3},
        "evaluation": {"every": 4, "samples": 1, "problems": 16},
    }
    return tiny_config(policy, preset, **merge(quick, sections))


@pytest.fixture(scope="module")
def whole(policy, tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(config_of(policy), folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(int(os.environ.get("RLOBJ_KILLS", "3"))))
def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(policy, whole, tmp_path, moment):
    """RLOBJ_KILLS=20 in the environment kills as many runs."""
    file = write_config(config_of(policy), tmp_path / "run.yaml")
    run, log = tmp_path / "run", tmp_path / "log"
    process = program(["train", "--config", file, "--out", run], log)
    while not (run / "config.resolved.yaml").exists():
        assert process.poll() is None, log.read_text()
        time.sleep(0.01)
    time.sleep(random.uniform(0, 2.5))
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
    newest = RunDirectory(run).latest()
    if newest is None or newest.name != "step-000008":
        finish(program(["train", "--resume", run], log), log)
    assert same(weights(run), weights(whole)), (left, log.read_text())
    assert metrics(run) == metrics(whole)


def test_rollouts_that_were_sampled_are_not_sampled_again(policy, whole, tmp_path, monkeypatch):
    """Cut off after step 5 with a checkpoint at step 3: steps 4 and 5 train on what is there."""
    config = config_of(policy)
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        for step in range(5):
            trainer.run_step(step)
    with Trainer(config, tmp_path / "run", True, observer()) as trainer:
        collector, sampled = trainer.pipeline._collector, []
        collect = collector.collect
        collector.collect = lambda step: sampled.append(step) or collect(step)
        assert trainer.step == 3
        for step in range(3, 8):
            trainer.run_step(step)
    assert sampled == [5, 6, 7]
    assert same(weights(tmp_path / "run"), weights(whole))


def observer():
    from rlobj.training import Observer

    return Observer()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_step_saves_it_and_ends_well(policy, whole, tmp_path, number):
    file = write_config(config_of(policy, checkpoint={"every": 0}), tmp_path / "run.yaml")
    run, log = tmp_path / "run", tmp_path / "log"
    process = program(["train", "--config", file, "--out", run], log)
    wait_for_step(run, 2, process, log)
    process.send_signal(number)
    text = finish(process, log)
    done = [line["step"] for line in metrics(run)][-1]
    assert [path.name for path in RunDirectory(run).saved()] == [f"step-{done:06d}"]
    assert "this step is finished and saved" in text
    if done < 8:
        assert f"rlobj train --resume {run}" in text.replace("\n", "")
        finish(program(["train", "--resume", run], log), log)
    assert same(weights(run), weights(whole))


def damage(checkpoint: Path, how: str) -> None:
    file = checkpoint / "model" / "model.safetensors"
    if how == "bits":
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    elif how == "cut":
        os.truncate(checkpoint / "optimizer" / "moments.safetensors", 100)
    elif how == "missing":
        (checkpoint / "state.json").unlink()
    else:
        (checkpoint / "manifest.json").write_text("{")


@pytest.mark.parametrize("how", ["bits", "cut", "missing", "manifest"])
def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(policy, whole, tmp_path, how, caplog):
    config = config_of(policy)
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        for step in range(7):  # the rollout of the last stays, and is used for its step
            trainer.run_step(step)
    run = RunDirectory(tmp_path / "run")
    assert [path.name for path in run.saved()] == ["step-000003", "step-000006"]
    damage(run.checkpoints / "step-000006", how)
    train(config, run.path, resume=True)
    assert "step-000006 is damaged" in caplog.text
    assert (run.checkpoints / "damaged-step-000006").is_dir()
    assert same(weights(run.path), weights(whole))


def test_when_every_checkpoint_is_damaged_the_run_says_so(policy, tmp_path):
    config = config_of(policy, training={"steps": 1})
    train(config, tmp_path / "run")
    damage(RunDirectory(tmp_path / "run").checkpoints / "step-000001", "bits")
    for _ in range(2):  # and says so again, with all that there was
        with pytest.raises(ConfigError, match=r"no checkpoint .* can be read"):
            train(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run")[-1]["step"] == 1


@pytest.mark.parametrize("stage", ["save_file", "json"])
def test_a_full_disk_leaves_the_checkpoint_before(policy, tmp_path, monkeypatch, stage):
    """The disk refuses one file in the middle of a checkpoint."""
    config = config_of(policy, training={"steps": 4}, checkpoint={"every": 2})
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        for step in range(3):
            trainer.run_step(step)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        place = "rlobj.training.checkpoint._write_manifest"
        monkeypatch.setattr("safetensors.torch.save_file" if stage == "save_file" else place, full)
        with pytest.raises(RunError, match="No space left"):
            trainer.run_step(3)
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-000002"]


def test_a_file_system_that_really_is_full_stops_the_run_with_advice(policy, tmp_path):
    """A limit on the size of files: what the kernel refuses is refused in the middle of a write."""
    import resource

    config = config_of(policy, evaluation={"every": 0})
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        trainer.run_step(0)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(RunError, match="cannot write a checkpoint"):
                trainer.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        assert RunDirectory(tmp_path / "run").saved() == []
        trainer.save()
    assert len(RunDirectory(tmp_path / "run").saved()) == 1


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(policy):
    with pytest.raises(ConfigError, match="cannot write the run to /proc/run"):
        train(config_of(policy), "/proc/run")
    with pytest.raises(ConfigError, match="cannot write to /proc"):
        train(config_of(policy), "/proc", resume=True)


class Exploding(Surrogate):
    """S = l, and ∞·l in the updates after the first two."""

    def __call__(self, terms):
        Exploding.calls += 1
        return terms.logprobs * (math.inf if Exploding.calls > 2 else 1)

    calls: ClassVar[int] = 0


def exploding(policy, **training):
    objective = {"surrogate": {"kind": "custom", "target": "test_surviving:Exploding"}}
    return tiny_config(policy, "grpo", objective=objective, training=training)


def test_updates_that_are_not_finite_are_skipped_kept_and_stop_the_run(policy, tmp_path):
    Exploding.calls = 0
    name = "nonfinite/step-000005-update-1-rank-0.pt"
    with pytest.raises(RunError, match=rf"3 updates in a row.*{name}"):
        train(exploding(policy, steps=9, max_skipped=3), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert [line["train/skipped_updates"] for line in lines] == [0, 0, 1, 1]
    kept = torch.load(tmp_path / "run" / "nonfinite" / "step-000003-update-1-rank-0.pt")
    table = TokenBatch(**{k: v for k, v in kept["columns"].items() if v is not None})
    assert len(table.lengths) == len(kept["sequences"]) == 256
    assert [len(response) for _, response in kept["sequences"]] == table.lengths.tolist()


def test_log_probs_that_are_not_finite_skip_the_step(policy, tmp_path, monkeypatch):
    with Trainer(config_of(policy), tmp_path / "run", False, observer()) as trainer:
        before = {n: p.detach().clone() for n, p in trainer.policy.model.named_parameters()}
        score = trainer.learner.score

        def broken(table, sequences):
            scored = score(table, sequences)
            return scored.replace(logprobs=scored.logprobs * math.nan)

        monkeypatch.setattr(trainer.learner, "score", broken)
        trainer.run_step(0)
        assert same(before, dict(trainer.policy.model.named_parameters()))
        assert metrics(tmp_path / "run")[-1]["train/skipped_updates"] == 1
        assert len(list((tmp_path / "run" / "nonfinite").iterdir())) == 1
        monkeypatch.undo()
        trainer.run_step(1)
        assert metrics(tmp_path / "run")[-1]["train/skipped_updates"] == 0


def test_a_forward_that_is_not_finite_in_the_update_itself_skips_it(policy, tmp_path, monkeypatch):
    """GRPO with one update makes no scoring pass: the update is the first to see the numbers."""
    config = config_of(policy, "grpo", training={"updates_per_step": 1})
    file = policy / "model.safetensors"
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        score = trainer.learner._score_part

        def broken(*arguments, **settings):
            scores = score(*arguments, **settings)
            return {**scores, "logprobs": scores["logprobs"] * math.nan}

        monkeypatch.setattr(trainer.learner, "_score_part", broken)
        trainer.run_step(0)
        after = dict(trainer.policy.model.named_parameters())
        assert all(torch.equal(w, after[n]) for n, w in load_file(file).items())
    assert metrics(tmp_path / "run")[-1]["train/skipped_updates"] == 1


# A sampler that fails, or is not the policy.


def test_a_sampler_that_fails_leaves_a_checkpoint_of_the_steps_before(
    policy, whole, tmp_path, monkeypatch
):
    """While it samples, and while it is given weights."""
    for place, done in (("sample", 4), ("sync", 5)):
        run = tmp_path / place
        with Trainer(config_of(policy), run, False, observer()) as trainer:
            for step in range(4):
                trainer.run_step(step)

            def lost(*_, **__):
                raise RunError("the server is gone")

            monkeypatch.setattr(trainer.sampler, place, lost)
            with pytest.raises(RunError, match="the server is gone"):
                trainer.run_step(4)
            monkeypatch.undo()
        assert RunDirectory(run).latest().name == f"step-{done:06d}"
        assert metrics(run)[-1]["step"] == done
        train(config_of(policy), run, resume=True)
        assert same(weights(run), weights(whole))


def hotter(trainer, monkeypatch):
    """The sampler draws at another temperature than it was asked for."""
    sample = trainer.sampler.sample

    def other(prompts, *, settings, **rest):
        return sample(prompts, settings=settings.model_copy(update={"temperature": 2.0}), **rest)

    monkeypatch.setattr(trainer.sampler, "sample", other)


@pytest.mark.parametrize("preset", ["stapo", "grpo", "dapo"])
def test_samples_of_another_distribution_stop_the_run_and_are_not_kept(
    policy, tmp_path, monkeypatch, preset
):
    """With a scoring pass, without one, and where no group is live."""
    config = config_of(policy, preset, training={"updates_per_step": 1})
    if preset == "dapo":
        config = config_of(policy, preset, sampling={"dynamic": {"max_batches": 1}})
        monkeypatch.setattr("rlobj.rewards.kinds._exact", lambda *_: Graded(1.0, True, "", None))
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        trainer.run_step(0)
        assert "sampler/logprob_gap" in metrics(tmp_path / "run")[-1]
        with monkeypatch.context() as patch:
            hotter(trainer, patch)
            with pytest.raises(RunError, match="does not sample from the policy"):
                trainer.run_step(1)
    with Trainer(config, tmp_path / "run", True, observer()) as trainer:
        for step in range(2):
            trainer.run_step(step)


def test_rollouts_ahead_are_vouched_for_by_samples_of_each_sync(policy, tmp_path, monkeypatch):
    config = config_of(policy, sampling={"async_depth": 1})
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        trainer.run_step(0)
        hotter(trainer, monkeypatch)
        with pytest.raises(RunError, match="does not sample from the policy"):
            trainer.run_step(1)


def test_a_stretched_schedule_does_not_train_on_rollouts_of_the_old_course(policy, tmp_path):
    config = config_of(policy, training={"schedule": "linear", "steps": 6, "warmup_steps": 0})
    longer = {"schedule": "linear", "steps": 12, "warmup_steps": 0}
    with Trainer(config, tmp_path / "run", False, observer()) as trainer:
        for step in range(5):
            trainer.run_step(step)
    train(config_of(policy, training=longer), tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run")[-1]["step"] == 12


# Rollouts ahead of the updates.


@pytest.mark.parametrize("depth", [1, 3])
def test_samples_are_exactly_so_many_steps_old(policy, tmp_path, depth):
    import pyarrow.parquet as parquet

    config = config_of(policy, sampling={"async_depth": depth})
    train(config, tmp_path / "run")
    for step in range(8):
        file = tmp_path / "run" / "samples" / f"step-{step + 1:06d}.parquet"
        versions = set(parquet.read_table(file)["weight_version"].to_pylist())
        assert versions == {max(0, step - depth)}


def test_a_run_with_rollouts_ahead_resumes_to_the_same_weights(policy, tmp_path):
    config = config_of(policy, sampling={"async_depth": 2})
    train(config, tmp_path / "whole")
    with Trainer(config, tmp_path / "cut", False, observer()) as trainer:
        for step in range(5):
            trainer.run_step(step)
    newest = RunDirectory(tmp_path / "cut").latest()
    assert newest is not None
    assert sorted(p.name for p in (newest / "rollouts").iterdir()) == ["step-000003", "step-000004"]
    import shutil

    shutil.rmtree(tmp_path / "cut" / "rollouts")  # what the checkpoint holds is enough
    (tmp_path / "cut" / "rollouts").mkdir()
    train(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


def test_rollouts_ahead_without_a_correction_are_warned_of(policy, tmp_path, caplog):
    config = config_of(policy, training={"steps": 1}, sampling={"async_depth": 1})
    train(config, tmp_path / "run")
    assert "without objective.mismatch" in caplog.text


# Adapters.


def test_lora_trains_adapters_alone_and_resumes_to_the_same_weights(policy, tmp_path):
    lora = {"lora": {"rank": 4, "alpha": 8.0}}
    config = config_of(policy, "lopti", model=lora)
    train(config, tmp_path / "whole")
    with Trainer(config, tmp_path / "cut", False, observer()) as trainer:
        assert trainer.learner.reference is None
        names = [n for n, p in trainer.policy.model.named_parameters() if p.requires_grad]
        assert names
        assert all(".lora_" in name for name in names)
        for step in range(4):
            trainer.run_step(step)
    train(config, tmp_path / "cut", resume=True)
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    before = load_file(policy / "model.safetensors")
    changed = {n for n, w in weights(tmp_path / "whole").items() if not torch.equal(w, before[n])}
    assert changed
    assert all("_proj." in name for name in changed)


def test_a_merged_checkpoint_is_the_model_with_its_adapter(policy, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    config = config_of(policy, "grpo", model={"lora": {"rank": 2}}, training={"steps": 2})
    train(config, tmp_path / "run")
    newest = RunDirectory(tmp_path / "run").latest()
    base = AutoModelForCausalLM.from_pretrained(policy)
    adapted = PeftModel.from_pretrained(base, str(newest / "adapter"))
    merged = AutoModelForCausalLM.from_pretrained(newest / "model")
    ids = torch.arange(1, 9)[None]
    plain = AutoModelForCausalLM.from_pretrained(policy)(ids).logits
    torch.testing.assert_close(adapted(ids).logits, merged(ids).logits)
    assert not torch.allclose(plain, merged(ids).logits)
