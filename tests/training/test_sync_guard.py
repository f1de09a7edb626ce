"""Every way in which vLLM could sample from other weights than the trainer's stops the run."""

from __future__ import annotations

import pytest
from tiny import tiny_config

from rlobj.base.errors import RunError
from rlobj.training import run_training
from rlobj.training.loop import stages
from rlobj.training.loop.opening import open_parts
from rlobj.training.loop.step import run_step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

LAYER = "model.layers.{}.mlp.up_proj.weight"


def vllm_config(policy, **sections):
    return tiny_config(
        policy,
        "stapo",
        sampling={"engine": "vllm", "max_tokens": 3},
        training={"steps": 99, "learning_rate": 2e-3, "warmup_steps": 0},
        **sections,
    )


def test_lora_is_synced_merged(policy, tmp_path):
    config = vllm_config(policy, model={"lora": {"rank": 4}})
    config = config.model_copy(update={"training": config.training.model_copy(update={"steps": 3})})
    lines = run_training(config, tmp_path / "run").history
    assert all(line["sampler/logprob_gap"] < 1e-5 for line in lines)
    assert lines[-1]["policy/entropy"] != lines[0]["policy/entropy"]


@pytest.fixture(scope="module")
def opened(policy, tmp_path_factory):
    with open_parts(vllm_config(policy), tmp_path_factory.mktemp("guard") / "run") as parts:
        run_step(parts)
        yield parts


@pytest.fixture
def parts(opened):
    """In step with its sampler, whatever the test before did."""
    stages.sync(opened)
    return opened


def test_sound_steps_agree_to_rounding(parts):
    for _ in range(3):
        run_step(parts)
        line = parts.run.lines()[-1]
        assert abs(line["sampler/kl"]) < 1e-6
        assert line["sampler/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert line["sampler/logprob_gap"] < 1e-5


def skipped(sync, weights, version):
    for _ in weights:
        pass


def dropped(sync, weights, version):
    sync(((n, w) for n, w in weights if n != LAYER.format(1)), version)


def permuted(sync, weights, version):
    other = {LAYER.format(0): LAYER.format(1), LAYER.format(1): LAYER.format(0)}
    sync(((other.get(n, n), w) for n, w in weights), version)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (skipped, "a weight sync was skipped or lost"),
        (dropped, rf"{LAYER.format(1)}: did not arrive"),
        (permuted, rf"{LAYER.format(0)}, {LAYER.format(1)}: arrived with other values"),
    ],
)
def test_a_sync_that_loses_something_is_named_in_its_step(parts, monkeypatch, fault, message):
    sync = parts.sampler.sync
    monkeypatch.setattr(parts.sampler, "sync", lambda w, v: fault(sync, w, v))
    with pytest.raises(RunError, match=message):
        run_step(parts)


def test_the_weights_of_the_step_before_are_named(parts, monkeypatch):
    before = [(name, tensor.clone()) for name, tensor in parts.policy.weights(lambda p: p.data)]
    sync = parts.sampler.sync

    def stale(weights, version):
        for _ in weights:
            pass
        sync(iter(before), version)

    monkeypatch.setattr(parts.sampler, "sync", stale)
    with pytest.raises(RunError, match=r"embed_tokens.weight.* and \d+ more: arrived with other"):
        run_step(parts)


def test_a_tied_head_that_stays_behind_is_seen_in_the_next_step(parts, monkeypatch):
    """Its tensors all arrive: only log-probs of fresh samples can tell."""
    monkeypatch.setattr("rlobj.samplers.vllm.extension.refresh_head", lambda *_: None)
    run_step(parts)
    with pytest.raises(RunError, match="does not sample from the policy"):
        run_step(parts)


@pytest.mark.parametrize("change", [{"temperature": 0.8}, {"top_p": 0.8}, {"min_p": 0.2}])
def test_another_distribution_is_seen_at_once(parts, monkeypatch, change):
    sample = parts.sampler.sample

    def other(prompts, *, settings, **rest):
        return sample(prompts, settings=settings.model_copy(update=change), **rest)

    monkeypatch.setattr(parts.sampler, "sample", other)
    with pytest.raises(RunError, match="does not sample from the policy"):
        run_step(parts)
