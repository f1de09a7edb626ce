"""Every way in which vLLM could sample from other weights than the trainer's stops the run.

The learning rate is so small that log-probs do not change visibly.
tests/samplers/test_weights.py has the message of every fault.
"""

from __future__ import annotations

import pytest
from runs import open_trainer

from rlobj.base.errors import RunError
from rlobj.samplers.vllm.extension import WeightExtension
from rlobj.settings.building import build_config
from rlobj.settings.presets import load_preset
from rlobj.settings.profiles import PROFILES
from rlobj.training import run_training
from rlobj.training.loop.step import run_step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


def vllm_config(**sections):
    """A short run of the embedded policy, whose choices are neither certain nor uniform."""
    mine = {
        "sampling": {"engine": "vllm", "prompts_per_step": 16},
        "training": {"steps": 99, "learning_rate": 1e-6, "warmup_steps": 0},
        "evaluation": {"every": 0},
        "checkpoint": {"every": 0},
        "output": {"tables_every": 0},
    }
    layers = [load_preset("stapo").config, PROFILES["scratchpad"], mine, sections]
    return build_config([(str(number), layer) for number, layer in enumerate(layers)])


@pytest.mark.parametrize("sync", ["adapter", "merged"])
def test_lora_is_synced_alone_and_merged_and_resumed(tmp_path, monkeypatch, sync):
    sent: list[int] = []
    load = WeightExtension.rlobj_load

    def noted(self, weights, version):
        load(self, weights, version)
        sent.append(len(weights.digests))

    monkeypatch.setattr(WeightExtension, "rlobj_load", noted)
    run = {"model": {"lora": {"rank": 4, "sync": sync}}, "checkpoint": {"every": 1}}
    run_training(vllm_config(**run, training={"steps": 3}), tmp_path / "run")
    again = run_training(vllm_config(**run, training={"steps": 4}), tmp_path / "run", resume=True)
    lines = again.history
    assert all(line["sampler/logprob_gap"] < 1e-5 for line in lines)
    assert lines[-1]["policy/entropy"] != lines[0]["policy/entropy"]
    whole, alone = (77, 42) if sync == "adapter" else (35, 35)
    assert sent == [whole, alone, alone, alone, whole, alone]


@pytest.fixture(scope="module", params=[1 << 24, 0], ids=["read whole", "read in parts"])
def opened(tmp_path_factory, request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlobj.samplers.syncing._LARGE", request.param)
        with open_trainer(vllm_config(), tmp_path_factory.mktemp("guard") / "run") as trainer:
            run_step(trainer)
            yield trainer


@pytest.fixture
def trainer(opened):
    """In step with its sampler, whatever the test before did; a part is read at its next sync."""
    opened.sync()
    opened.synchronizer.check()
    return opened


def test_sound_steps_agree_to_rounding(trainer):
    for _ in range(3):
        run_step(trainer)
        line = trainer.run.lines()[-1]
        assert abs(line["sampler/kl"]) < 1e-7
        assert line["sampler/logprob_gap"] < 2e-6


@pytest.fixture
def engine(trainer):
    """The worker of the engine: what happens in it, the checksums of what arrived do not see."""
    found = []
    trainer.sampler._engine.collective_rpc(found.append)
    return found[0].worker


def one_version_old(load, now, before):
    for _ in now:
        pass
    load(weights_iterator=iter(before))


def stale_head(load, now, before):
    load(weights_iterator=now)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (one_version_old, r"lm_head.weight \(packed\).*: has other values"),
        (stale_head, r"1 tensor, such as lm_head.weight \(packed\): has other values"),
    ],
)
def test_a_fault_inside_the_engine_is_named_in_its_step(
    trainer, engine, monkeypatch, fault, message
):
    before = [(name, tensor.clone()) for name, tensor in trainer.policy.weights(lambda p: p.data)]
    load = engine.reload_weights
    monkeypatch.setattr(
        engine, "reload_weights", lambda *, weights_iterator: fault(load, weights_iterator, before)
    )
    if fault is stale_head:
        monkeypatch.setattr("rlobj.samplers.vllm.extension.refresh_head", lambda *_: None)
    with pytest.raises(RunError, match=rf"(?ms)computes with others:.*{message}"):
        run_step(trainer)


def test_weights_that_change_between_sync_and_sampling_are_named(trainer, engine):
    engine.model_runner.get_model().model.norm.weight.data.mul_(1.02)
    with pytest.raises(RunError, match=r"1 tensor, such as model.norm.weight: has other values"):
        run_step(trainer)


def test_another_temperature_inside_the_engine_is_refused(trainer, engine, monkeypatch):
    batch = engine.model_runner.input_batch
    add = batch.add_request

    def add_request(request):
        request.sampling_params.temperature = 0.9
        return add(request)

    monkeypatch.setattr(batch, "add_request", add_request)
    with pytest.raises(RunError, match="other weights, another temperature"):
        [run_step(trainer) for _ in range(2)]
