"""Weights that ranks read in parts are those of a model that is loaded whole."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import call_in_ranks
from parallel_worker import rollout, tiny_policy
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rlobj.config.run_config import LoraConfig, ModelConfig
from rlobj.models.loading import is_hollow, reading
from rlobj.models.policy import load_model, with_adapters
from rlobj.scoring import PolicyScorer, pad_sequences
from rlobj.training.parallel import build_parallel, open_processes

KINDS = ("tied", "untied", "bfloat16", "adapters")


def save(folder: Path, kind: str) -> Path:
    """A model with sizes that 2 and 3 do not divide, in several files."""
    sizes = {"vocab_size": 49, "hidden_size": 37, "intermediate_size": 61, "head_dim": 6}
    model = tiny_policy(tied=kind != "untied", **sizes)
    model.generation_config.temperature = 0.3
    model.generation_config.do_sample = True
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    model.to(dtype).save_pretrained(folder / kind, max_shard_size="20KB")
    assert len([*(folder / kind).glob("*.safetensors")]) > 1
    return folder / kind


def loaded(folder: Path, kind: str, hollow: bool, **settings: Any) -> Any:
    torch.manual_seed(0)
    model = load_model(ModelConfig(), str(folder), hollow=hollow, **settings)
    return with_adapters(model, LoraConfig(rank=2), None) if kind == "adapters" else model


def compare(parallel: Any, folder: Path, kind: str) -> None:
    """Sharded weights and their scores against those of the whole model."""
    model, whole = (loaded(folder / kind, kind, hollow) for hollow in (True, False))
    unread = [is_hollow(parameter) for parameter in model.parameters()]
    assert any(unread)
    assert all(unread) is (kind != "adapters")
    with reading(model):
        scorer = PolicyScorer(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    score = parallel.prepare(scorer, torch.optim.AdamW(trained, lr=1.0))
    expected = dict(whole.named_parameters())
    found = {name: parallel.full(x).clone() for name, x in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), (kind, name)
    inputs = pad_sequences(rollout()[1])
    with torch.no_grad():
        assert torch.equal(score(*inputs).logprobs, PolicyScorer(whole)(*inputs).logprobs)


def compare_frozen(parallel: Any, folder: Path) -> None:
    model, whole = (
        loaded(folder / "untied", "untied", hollow, dtype=torch.bfloat16)
        for hollow in (True, False)
    )
    inputs = pad_sequences(rollout()[1])
    with torch.no_grad():
        with reading(model):
            scorer = PolicyScorer(model.requires_grad_(False))
        found = parallel.frozen(scorer)(*inputs).logprobs
        assert torch.equal(found, PolicyScorer(whole)(*inputs).logprobs)
    held = sum(x.numel() for x in map(_stored, model.parameters()))
    assert held < 0.7 * sum(x.numel() for x in whole.parameters())


def _stored(parameter: Any) -> Any:
    return parameter.to_local()


def rank_main(rank: int, size: int, folder: str) -> None:
    from rlobj.training.parallel import zero

    torch.set_num_threads(1)
    zero.PERSISTENT_ELEMENTS, zero.BUCKET_ELEMENTS = 100, 1000
    with contextlib.ExitStack() as stack:
        accelerator = open_processes(stack, grouped=True)
        for strategy in ("fsdp2", "zero3"):
            for kind in KINDS:
                parallel = build_parallel(strategy, accelerator, 0.5, None)
                compare(parallel, Path(folder), kind)
                parallel.close()
            parallel = build_parallel(strategy, accelerator, 0.5, None)
            compare_frozen(parallel, Path(folder))
            parallel.close()


@pytest.mark.slow
@pytest.mark.deepspeed
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_read_their_shards_bit_for_bit(tmp_path, size):
    for kind in KINDS:
        save(tmp_path, kind)
    call_in_ranks(rank_main, size, tmp_path)
