"""The memory that a run needs: beside what torch holds, and refused where the GPU has less."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Qwen3Config

import rlobj
from rlobj.base.errors import ConfigError
from rlobj.config.run_config import LoraConfig, ModelConfig, RunConfig, compose
from rlobj.models.embedded import build_policy
from rlobj.models.policy import with_adapters
from rlobj.training.memory import GIB, Size, estimate, require_memory

EIGHT = Size(total=8_190_735_360, adapters=2_727_936)
"""Qwen3-8B."""


def run(**sections: dict[str, Any]) -> RunConfig:
    above = {"model": {"name": "an/8B", **sections.pop("model", {})}, "data": {"source": "x.jsonl"}}
    return compose("grpo", [("here", {**above, **sections})])


def test_ddp_holds_the_bytes_that_torch_measures():
    model = build_policy(0)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2]])).logits.sum().backward()
    optimizer.step()
    tensors = [each for p in model.parameters() for each in (p, p.grad)]
    tensors += [each for state in optimizer.state.values() for each in state.values()]
    measured = sum(each.nbytes for each in tensors if each is not None)
    size = Size.of(model, None)
    freed = sum(p.nbytes for p in model.parameters())
    sampling, update = estimate(compose("grpo"), size, "ddp", 1).needed
    assert (measured - freed) * 0.99 < sampling <= measured - freed
    assert measured < update < 1.03 * measured


def test_the_parameters_are_those_of_the_model_and_of_its_adapters(tmp_path):
    config = Qwen3Config(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=99)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    settings = LoraConfig(rank=3)
    size = Size.named(ModelConfig(name=str(tmp_path)), local=True)
    assert size is not None
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(config)
    assert size.total == sum(p.numel() for p in model.parameters())
    adapted = with_adapters(model, settings, None)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained == 3 * size.adapters
    assert Size.named(ModelConfig(name="nobody/has-this-model"), local=True) is None


@pytest.mark.parametrize(
    ("strategy", "ranks", "sampling", "update"),
    [
        ("ddp", 1, 12, 16.3),
        ("ddp", 8, 16, 16.3),
        ("zero1", 4, 7, 11),
        ("zero2", 4, 7, 8),
        ("zero3", 4, 9, 12.75),
        ("fsdp2", 10, 6, 7.5),
    ],
)
def test_bytes_of_the_strategies(strategy, ranks, sampling, update):
    """zero3 and fsdp2 include the sampler's copy, 4 bytes a parameter."""
    found = estimate(run(), Size(1000, 0), strategy, ranks).needed
    assert found == pytest.approx((1000 * sampling, 1000 * update))


def test_copies_and_vllm_are_counted_where_a_run_has_them():
    kl = {"penalties": [{"kind": "kl", "estimator": "k3", "coefficient": 0.1}]}
    vllm = {"engine": "vllm", "vllm": {"sleep_level": 0}}
    both = estimate(run(objective=kl, sampling=vllm), EIGHT, "ddp", 1, 80 * GIB)
    assert both.parts["reference model"] == (4 * EIGHT.total,) * 2
    assert both.parts["vLLM"] == (40 * GIB,) * 2
    asleep = {"engine": "vllm", "vllm": {"kv_cache_bytes": GIB}}
    small = run(objective=kl, sampling=asleep, model={"lora": {"rank": 2}})
    found = estimate(small, EIGHT, "zero3", 2, 80 * GIB).parts
    assert found["vLLM"] == (2 * EIGHT.total + GIB, 0)
    assert found["frozen weights"] == (2 * EIGHT.total,) * 2
    assert found["adapters"] == (20 * EIGHT.adapters, 35 * EIGHT.adapters)
    assert "reference model" not in found


def test_a_run_that_cannot_fit_is_told_what_can():
    vllm = run(sampling={"engine": "vllm"})
    with pytest.raises(ConfigError) as error:
        require_memory(vllm, EIGHT, "ddp", 1, 80 * GIB)
    text = str(error.value)
    assert "a process needs 131.5 GiB without activations, and the GPU has 80.0 GiB" in text
    assert "  set model.lora.rank=16: 71.0 GiB" in text
    assert "set training.strategy=zero3, processes=4: 78.1 GiB" in text
    require_memory(vllm, EIGHT, "zero3", 4, 80 * GIB)
    with pytest.raises(ConfigError, match="a smaller model, or LoRA and zero3"):
        require_memory(vllm, EIGHT, "ddp", 1, 2 * GIB)


def test_training_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("rlobj.training.choosing.own_card", lambda: ("a GPU", 1_000_000))
    with pytest.raises(ConfigError, match="the run cannot fit the GPU: a process needs"):
        rlobj.train("grpo", data="max-digits", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
