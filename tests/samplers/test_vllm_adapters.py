"""Adapters alone in vLLM: log-probs after each sync, faults, and servers that lose them."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from served import ONE_PROCESS, Served, model_to_serve, serving
from vllm_tools import (
    NEEDS_VLLM,
    TOLERANCE,
    InFlight,
    draw,
    gap,
    jitter,
    save_policy,
)

from rlobj.base.errors import ConfigError, RunError
from rlobj.models.adapters import adapter_weights, with_adapters
from rlobj.models.policy import Policy
from rlobj.samplers import SamplingSettings
from rlobj.samplers.syncing import Synchronizer
from rlobj.samplers.types import WeightsLost
from rlobj.samplers.vllm import ServerSettings, VllmSampler, VllmServerSampler, VllmSettings
from rlobj.settings.run_config import LoraConfig

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(**NEEDS_VLLM)]
LORA = LoraConfig(rank=3, alpha=5.0)
"""Its rank is none for which vLLM has room, and alpha/r is no power of 2."""


def adapted(model: Any, lora: LoraConfig = LORA) -> Any:
    """The model with an adapter that changes it."""
    model = with_adapters(model, lora, None)
    train(model, seed=0)
    return model


def train(model: Any, seed: int) -> None:
    """Move the adapter, as an update would."""
    jitter(torch.nn.ParameterList(p for p in model.parameters() if p.requires_grad), seed=seed)


def synchronizer(sampler: Any, model: Any) -> Synchronizer:
    """One that brings the adapter alone, as a trainer's does."""

    def full(parameter: Any) -> Any:
        return parameter.detach()

    policy = Policy(model, sampler.tokenizer, "", None, "", "")
    return Synchronizer(
        sampler,
        lambda: policy.weights(full, merged=False),
        lambda: adapter_weights(model, full, scaled=True),
    )


@contextlib.contextmanager
def engine(folder: Path, **options: Any):
    """vLLM in this process, with the model of a folder."""
    tokenizer = build_tokenizer()
    settings = VllmSettings(kv_cache_bytes=64 << 20)
    options = {"dtype": torch.float32, "lora_rank": LORA.rank, **options}
    eos = [tokenizer.eos_token_id]
    sampler = VllmSampler(str(folder), tokenizer, eos=eos, settings=settings, **options)
    try:
        yield sampler
    finally:
        sampler.close()


def check_syncs(sampler: Any, model: Any) -> Synchronizer:
    """Samples have the log-probs of the policy after each sync; only the first brings all."""
    sync = synchronizer(sampler, model)
    for version in (1, 2, 3):
        train(model, seed=version)
        sync.push(version)
        sync.check()
        samples = draw(sampler)
        assert gap(model, samples) < TOLERANCE
        assert {sample.weight_version for sample in samples} == {version}
        train(model, seed=version + 10)
        assert gap(model, samples) > 0.01
    return sync


def check_in_flight(sampler: Any, model: Any, patch: pytest.MonkeyPatch) -> None:
    """Responses go on with each new adapter, and say which tokens are of which."""
    sync = synchronizer(sampler, model)
    patch.setattr("vllm_tools.push", lambda sampler, model, version: sync.push(version))
    patch.setattr("vllm_tools.jitter", train)
    sampler._eos = []  # so that only their lengths end responses
    drawing = InFlight(sampler, model)
    drawing.ask(100)
    for version in (101, 102, 103):
        time.sleep(0.3)
        drawing.sync(version)
    drawing.end()
    assert sum(len(each.versions) - 1 for each in drawing.responses) > 50
    assert max(drawing.gaps()) < TOLERANCE


def layer(sampler: VllmSampler) -> Any:
    """A fused layer of the engine, with its adapters."""
    core = sampler._engine.llm_engine.engine_core.engine_core
    model = core.model_executor.driver_worker.worker.model_runner.get_model()
    return model.model.layers[1].self_attn.qkv_proj


@pytest.mark.parametrize("name", ["tied", pytest.param("untied", marks=pytest.mark.slow)])
def test_log_probs_are_the_policys_after_each_sync_and_faults_are_named(tmp_path, name):
    model = adapted(save_policy(tmp_path, tied=name == "tied"))
    with engine(tmp_path) as sampler:
        sync = check_syncs(sampler, model)
        for stack, what in (
            ("lora_a_stacked", "k_proj.lora_A"),
            ("lora_b_stacked", "k_proj.lora_B"),
        ):
            value = getattr(layer(sampler), stack)[1][0, 0, 1]
            value[2] += 1e-4
            with pytest.raises(RunError, match=rf"computes with(.|\n)*layers\.1\..*{what}"):
                sync.check()
            value[2] -= 1e-4
            sync.push(4)
        kept = layer(sampler).base_layer.quant_method.apply

        def wrong(*arguments: Any) -> Any:
            return 1.01 * kept(*arguments)

        layer(sampler).base_layer.quant_method.apply = wrong
        with pytest.raises(RunError, match="has other values"):
            sync.check()


@pytest.mark.slow
def test_some_layers_have_an_adapter_and_large_models_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("rlobj.samplers.syncing._LARGE", 0)
    some = LoraConfig(rank=3, alpha=5.0, targets=("k_proj", "down_proj"))
    model = adapted(save_policy(tmp_path, tied=True), some)
    with engine(tmp_path) as sampler:
        sync = check_syncs(sampler, model)
        assert sync._part is not None
        weight = layer(sampler).lora_b_stacked[1]
        weight[0, 0, :, 1] += 1
        with pytest.raises(RunError, match=r"k_proj\.lora_B"):  # noqa: PT012
            for version in range(4, 12):  # B has three columns
                sync.push(version)
                weight[0, 0, :, 1] += 1
                sync.check()


@pytest.mark.slow
def test_responses_go_on_with_a_new_adapter(tmp_path, monkeypatch):
    model = adapted(save_policy(tmp_path, tied=True))
    with engine(tmp_path) as sampler:
        check_in_flight(sampler, model, monkeypatch)


@pytest.mark.slow
def test_bfloat16_engines_compute_with_the_adapter_as_the_policy_does(tmp_path):
    model = adapted(save_policy(tmp_path, tied=True))
    with engine(tmp_path, dtype=torch.bfloat16) as sampler:
        sync = synchronizer(sampler, model)
        sync.push(1)
        sync.check()
        before = draw(sampler)
        train(model, seed=1)
        sync.push(2)
        with torch.autocast("cpu", torch.bfloat16):
            assert gap(model, draw(sampler)) < 0.5 < gap(model, before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with model_to_serve(tmp_path_factory.mktemp("served")) as model:
        yield model


def client(served: Served, model: Any, lora_rank: int = LORA.rank, **settings: Any) -> Any:
    tokenizer = build_tokenizer()
    return VllmServerSampler(
        ServerSettings(url=served.url, **settings),
        tokenizer,
        eos=[tokenizer.eos_token_id],
        model_config=model.config,
        lora_rank=lora_rank,
    )


@pytest.fixture
def model(folder):
    from transformers import AutoModelForCausalLM

    return adapted(AutoModelForCausalLM.from_pretrained(folder))


@pytest.mark.slow
def test_a_server_takes_adapters_and_one_that_was_restarted_gets_all_again(folder, model):
    with serving(folder, "--lora-rank", "3", arguments=ONE_PROCESS, fork=True) as served:
        for transport in ("broadcast", "file"):
            sampler = client(served, model, transport=transport)
            sync = check_syncs(sampler, model)
        with pytest.MonkeyPatch.context() as patch:
            check_in_flight(client(served, model), model, patch)
        sync.push(4)
        url, name, _ = sampler.endpoint(SamplingSettings(max_tokens=4))
        assert (url, name) == (served.url, "policy")
        with pytest.raises(
            ConfigError, match=r"no room for .* 9\. .*--lora-rank 9, or use .*merged"
        ):
            client(served, model, lora_rank=9)
        merged = client(served, model, lora_rank=0)
        policy = Policy(model, sampler.tokenizer, "", None, "", "")
        Synchronizer(merged, lambda: policy.weights(lambda p: p.detach())).push(5)
        assert gap(model, draw(merged)) < TOLERANCE
        with pytest.raises(WeightsLost):
            draw(sampler)
        port = served.port
    with serving(folder, "--lora-rank", "3", arguments=ONE_PROCESS, port=port, fork=True):
        with pytest.raises(WeightsLost, match="has no weights of this run"):
            sync.push(6)
        sync.push(6)
        assert gap(model, draw(sampler)) < TOLERANCE
