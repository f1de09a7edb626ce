"""What happens to a run that is killed, interrupted, or whose disk or numbers go bad."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from forked import wait_until
from runs import finish, make_steps, metrics, open_trainer, program, same, weights, write_config
from safetensors.torch import load_file
from screens import printed, shows
from tiny import eight_steps, tiny_config

from rlobj.base.errors import ConfigError, RunError
from rlobj.objectives.surrogates import Surrogate
from rlobj.runs.checkpoints import checkpoints, newest_checkpoint
from rlobj.runs.run_folder import RunFolder
from rlobj.training import run_training
from rlobj.training.loop.step import run_step
from rlobj.training.resumed_run import open_resumed

MOMENTS = range(1, int(os.environ.get("RLOBJ_KILLS", "2")))


@pytest.mark.parametrize("moment", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in MOMENTS)])
def test_a_run_killed_at_any_moment_ends_as_if_it_had_not_been(policy, whole, tmp_path, moment):
    """RLOBJ_KILLS=20 in the environment kills as many runs."""
    file = write_config(eight_steps(policy), tmp_path / "run.yaml")
    run, log = tmp_path / "run", tmp_path / "log"
    process = program(["train", "--config", file, "--out", run], log)
    wait_until((run / "config.resolved.yaml").exists, 300, process, log)
    time.sleep(random.uniform(0, 2.5))
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
    newest = newest_checkpoint(run)
    if newest is None or newest.name != "step-000008":
        finish(program(["resume", run], log), log)
    assert same(weights(run), weights(whole)), (left, log.read_text())
    assert metrics(run) == metrics(whole)


def test_the_steps_after_a_checkpoint_are_sampled_again_and_equal_to_the_bit(
    policy, whole, tmp_path
):
    """Cut off after step 5 with a checkpoint at step 3. A step has two updates."""
    config = eight_steps(policy)
    make_steps(config, tmp_path / "run", 5)
    assert make_steps(config, tmp_path / "run", 5, resume=True) == [3, 4, 5, 6, 7]
    assert same(weights(tmp_path / "run"), weights(whole))
    assert metrics(tmp_path / "run") == metrics(whole)


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


def test_a_damaged_checkpoint_is_set_aside_for_the_one_before(whole, tmp_path):
    """All steps seem done, and the newest checkpoint is damaged: it counts for nobody."""
    run = shutil.copytree(whole, tmp_path / "run")
    for how in ("bits", "cut", "missing", "manifest"):
        copy = shutil.copytree(run, tmp_path / how)
        damage(copy / "checkpoints" / "step-000008", how)
        assert open_resumed(copy).done == 6
        assert (copy / "checkpoints" / "step-000008").is_dir()  # looking changes nothing
    text = printed("resume", tmp_path / "bits")
    assert shows("from step 6 of 8", text)
    assert shows("step-000008 is damaged", text)
    assert (tmp_path / "bits" / "checkpoints" / "damaged-step-000008").is_dir()
    assert same(weights(tmp_path / "bits"), weights(whole))
    assert metrics(tmp_path / "bits") == metrics(whole)


def test_a_run_with_links_to_elsewhere_is_not_resumed(policy, whole, tmp_path):
    run = shutil.copytree(whole, tmp_path / "run")
    mine = tmp_path / "mine"
    mine.write_text("kept")
    for name in (".lock", "sessions.jsonl"):
        (run / name).unlink()
        (run / name).symlink_to(mine)
        with pytest.raises(ConfigError, match=f"{name} is a link out of"):
            run_training(eight_steps(policy, training={"steps": 9}), run, resume=True)
        assert mine.read_text() == "kept"
        (run / name).unlink()
        (run / name).touch()


def test_when_every_checkpoint_is_damaged_the_run_says_so(policy, tmp_path):
    config = eight_steps(policy, training={"steps": 1})
    run_training(config, tmp_path / "run")
    damage(RunFolder(tmp_path / "run").checkpoints / "step-000001", "bits")
    for _ in range(2):  # and says so again, with all that there was
        with pytest.raises(ConfigError, match=r"no checkpoint .* can be read"):
            run_training(config, tmp_path / "run", resume=True)
    assert metrics(tmp_path / "run")[-1]["step"] == 1


def test_a_full_disk_leaves_the_checkpoint_before(policy, tmp_path):
    """A limit on the size of files: what the kernel refuses is refused in the middle of a write."""
    with open_trainer(eight_steps(policy, evaluation={"every": 0}), tmp_path / "run") as trainer:
        run_step(trainer)
        trainer.save(now=True)
        run_step(trainer)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(RunError, match="cannot write a checkpoint"):
                trainer.save(now=True)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            signal.signal(signal.SIGXFSZ, handler)
        left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
        assert left == ["step-000001"]
        trainer.save(now=True)
    assert len(checkpoints(tmp_path / "run")) == 2


def test_a_folder_that_cannot_be_written_is_refused_before_the_first_step(policy):
    with pytest.raises(ConfigError, match="cannot write to /proc/run"):
        run_training(eight_steps(policy), "/proc/run")
    with pytest.raises(ConfigError, match="cannot write to /proc"):
        run_training(eight_steps(policy), "/proc", resume=True)


class Exploding(Surrogate):
    """S = l, and ∞·l in the updates after the first two."""

    def __call__(self, terms):
        Exploding.calls += 1
        return terms.logprobs * (math.inf if Exploding.calls > 2 else 1)

    calls: ClassVar[int] = 0


def exploding(policy, **training):
    objective = {"surrogate": {"kind": "custom", "target": "test_surviving:Exploding"}}
    return tiny_config(policy, "grpo", objective=objective, training=training)


def test_updates_that_are_not_finite_are_skipped_and_stop_the_run(policy, tmp_path):
    Exploding.calls = 0
    last = "step 5, update 1, rank 0 with responses 0 to 255"
    with pytest.raises(RunError, match=f"3 updates in a row.*{last}"):
        run_training(exploding(policy, steps=9, max_skipped=3), tmp_path / "run")
    lines = metrics(tmp_path / "run")
    assert [line["train/skipped_updates"] for line in lines] == [0, 0, 1, 1]


class FailsInAStep(Surrogate):
    """A mistake that the small tables before a run do not meet."""

    def __call__(self, terms):
        if len(terms.logprobs) > 40 and FailsInAStep.mistaken:
            raise KeyError("clip")
        return terms.token_ratio * terms.advantages

    mistaken: ClassVar[bool] = True


def test_an_error_in_a_class_of_ones_own_is_reported_and_its_folder_may_be_used_again(
    policy, tmp_path, monkeypatch
):
    objective = {"surrogate": {"kind": "custom", "target": "test_surviving:FailsInAStep"}}
    config = tiny_config(policy, "grpo", objective=objective, training={"steps": 1})
    with pytest.raises(RunError, match=rf"KeyError: 'clip'\n  at {__file__}, line \d+: raise"):
        run_training(config, tmp_path / "run")
    assert "KeyError" in json.loads((tmp_path / "run" / "stopped.json").read_text())["message"]
    monkeypatch.setattr(FailsInAStep, "mistaken", False)
    run_training(config, tmp_path / "run")
    assert not (tmp_path / "run" / "stopped.json").exists()
    assert len(metrics(tmp_path / "run")) == 1
    with pytest.raises(ConfigError, match="already contains a run"):
        run_training(config, tmp_path / "run")


@pytest.mark.parametrize("preset", ["grpo", "gmpo", "cispo", "gpg"])
def test_a_forward_that_is_not_finite_in_the_update_itself_skips_it(
    preset, policy, tmp_path, monkeypatch
):
    """With one update there is no scoring pass: the update is the first to see the numbers."""
    config = eight_steps(policy, preset, training={"updates_per_step": 1})
    file = policy / "model.safetensors"
    with open_trainer(config, tmp_path / "run") as trainer:
        run = trainer.learner.forward.run

        def broken(*arguments, **settings):
            for part, scores, last in run(*arguments, **settings):
                logprobs = scores["logprobs"].clone()
                logprobs[::7] = -math.inf
                yield part, {**scores, "logprobs": logprobs}, last

        monkeypatch.setattr(trainer.learner.forward, "run", broken)
        run_step(trainer)
        after = dict(trainer.policy.model.named_parameters())
        assert all(torch.equal(w, after[n].cpu()) for n, w in load_file(file).items())
    assert metrics(tmp_path / "run")[-1]["train/skipped_updates"] == 1
