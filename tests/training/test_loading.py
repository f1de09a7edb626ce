"""Weights that ranks read in parts are those of a model that is loaded whole."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from forked import call_in_ranks
from parallel_worker import rollout, tiny_policy
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3ForCausalLM
from transformers.utils.logging import enable_progress_bar, is_progress_bar_enabled

from rlobj import ConfigError
from rlobj.models import loading
from rlobj.models.adapters import with_adapters
from rlobj.models.hollow import filled, hollow_model, is_hollow, reading
from rlobj.models.scores import frozen
from rlobj.scoring import PolicyScorer, pad_sequences
from rlobj.settings.run_config import LoraConfig, ModelConfig
from rlobj.settings.scores import ScoreConfig
from rlobj.training.parallel import open_parallel, open_processes

load_model: Any = loading.load_model
KINDS = ("tied", "untied", "bfloat16", "adapters")


def save(folder: Path, kind: str) -> Path:
    """A model with sizes that 3 does not divide, in several files."""
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
    device = parallel.device
    model, whole = (loaded(folder / kind, kind, hollow, device=device) for hollow in (True, False))
    with reading(model.to(device)):
        scorer = PolicyScorer(model)
    unread = [parameter for parameter in model.parameters() if is_hollow(parameter)]
    assert len(unread) == len([*whole.parameters()]) - 28 * (kind == "adapters")
    assert sum(parameter.untyped_storage().nbytes() for parameter in unread) < 1000
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
        settings: Any = {"accelerator": open_processes(stack, grouped=True), "seed": 0}
        settings |= {"max_grad_norm": 0.5, "autocast": None}
        for strategy in ("fsdp2", "zero3"):
            for kind in KINDS:
                parallel = open_parallel(strategy, **settings)
                compare(parallel, Path(folder), kind)
                parallel.close()
            parallel = open_parallel(strategy, **settings)
            compare_frozen(parallel, Path(folder))
            parallel.close()


@pytest.mark.slow
@pytest.mark.deepspeed
def test_ranks_read_their_shards_bit_for_bit(tmp_path):
    for kind in KINDS:
        save(tmp_path, kind)
    call_in_ranks(rank_main, 3, tmp_path)


def state(model: Any) -> dict[str, torch.Tensor]:
    """Weights and buffers by name, tied ones twice."""
    named = model.named_parameters(remove_duplicate=False)
    return {**dict(named), **dict(model.named_buffers())}


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Put all weights in one file, with some changed or left out."""
    kept = {n: x for file in folder.glob("*.safetensors") for n, x in load_file(file).items()}
    for file in folder.glob("model*"):
        file.unlink()
    kept |= {name.replace("__", "."): x for name, x in tensors.items()}
    whole = {name: x for name, x in kept.items() if x is not None}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def test_a_model_that_is_read_in_parts_is_the_one_that_transformers_loads(tmp_path):
    folder = save(tmp_path, "tied")
    torch.manual_seed(5)
    model, drawn = load_model(ModelConfig(), str(folder), hollow=True), torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    whole = load_model(ModelConfig(), str(folder))
    assert sum(x.untyped_storage().nbytes() for x in model.parameters()) < 1000
    assert [*filled(model.parameters())] == [*model.parameters()]
    found, expected = state(model), state(whole)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], x) for name, x in expected.items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.to_dict() == whole.config.to_dict()
    assert model.generation_config.to_dict() == whole.generation_config.to_dict()
    assert model.training is whole.training


@pytest.mark.parametrize(
    ("changed", "whole"),
    [
        ({"lm_head__weight": None}, False),  # many files have both of two tied weights
        ({"lm_head__weight": torch.ones(49, 37)}, False),  # then they are not tied
        ({"model__norm__weight": torch.ones(37, dtype=torch.int8)}, True),
        ({"model__norm__weight": torch.ones(37).to(torch.float8_e4m3fn)}, True),
    ],
)
def test_other_tensors_than_the_model_has_are_those_that_transformers_loads(
    tmp_path, caplog, changed, whole
):
    folder = save(tmp_path, "tied")
    if changed.get("lm_head__weight", ()) is None:
        changed = {
            "lm_head__weight": state(load_model(ModelConfig(), str(folder)))["lm_head.weight"]
        }
    change(folder, **changed)
    model, expected = (load_model(ModelConfig(), str(folder), hollow=x) for x in (True, False))
    assert any(map(is_hollow, model.parameters())) is not whole
    assert ("loaded whole by each process: it has" in caplog.text) is whole
    for _ in filled(model.parameters()):
        pass
    assert all(torch.equal(state(model)[name], x) for name, x in state(expected).items())
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert tied is (expected.lm_head.weight is expected.model.embed_tokens.weight)


class Counted(Qwen3ForCausalLM):
    """A model with a buffer that its files have."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.register_buffer("count", torch.zeros(2))


def test_a_buffer_is_read_from_the_files_in_its_own_dtype(tmp_path):
    folder = save(tmp_path, "bfloat16")
    change(folder, count=torch.tensor([1.5, 3], dtype=torch.bfloat16))
    kind = SimpleNamespace(
        from_config=Counted._from_config, from_pretrained=Counted.from_pretrained
    )
    for hollow in (True, False):
        model = load_model(ModelConfig(), str(folder), hollow=hollow, kind=kind)
        assert any(map(is_hollow, model.parameters())) is hollow
        assert model.count.dtype == torch.float32
        assert model.count.tolist() == [1.5, 3]


@pytest.mark.parametrize("hollow", [True, False])
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"model__norm__weight": None}, "its files lack model.norm.weight"),
        ({"model__layers__1__mlp__up_proj__weight": None}, r"lack model.layers.1.mlp.up_proj.w"),
        ({"model__embed_tokens__weight": None}, "its files lack .*model.embed_tokens.weight"),
        ({"model__norm__weight": torch.ones(36)}, r"model.norm.weight \[36\] instead of \[37\]"),
    ],
)
def test_a_model_without_all_of_its_tensors_is_refused(tmp_path, hollow, changed, why):
    folder = save(tmp_path, "tied")
    change(folder, **changed)
    with pytest.raises(ConfigError, match=why):
        load_model(ModelConfig(), str(folder), hollow=hollow)


@pytest.mark.parametrize("hollow", [True, False])
def test_a_tensor_that_the_model_does_not_use_is_named_in_one_line(tmp_path, caplog, hollow):
    folder = save(tmp_path, "tied")
    old = {"model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(3)}
    change(folder, value_head__weight=torch.ones(2), **old)
    enable_progress_bar()  # a command of another test may have hidden it
    model = load_model(ModelConfig(), str(folder), hollow=hollow)
    assert any(map(is_hollow, model.parameters())) is hollow
    assert is_progress_bar_enabled(), "of other models that the caller loads"
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("rlobj")
    ] == [f"'{folder}' has tensors that its model does not use: value_head.weight"]


def test_a_model_with_adapters_beside_it_is_refused(tmp_path):
    folder = save(tmp_path, "adapters")
    adapted = with_adapters(load_model(ModelConfig(), str(folder)), LoraConfig(rank=2), None)
    adapted.save_pretrained(folder)
    with pytest.raises(ConfigError, match=r"has adapters beside its model: merge them first"):
        load_model(ModelConfig(), str(folder), hollow=True)


@pytest.mark.parametrize("trust", [True, False])
def test_loading_never_asks_whether_code_of_a_model_may_run(tmp_path, monkeypatch, caplog, trust):
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked: list[Any] = []
    monkeypatch.setattr("builtins.input", asked.append)
    settings = ModelConfig(trust_remote_code=trust)
    assert hollow_model(settings, str(tmp_path), torch.float32, "cpu", AutoModelForCausalLM) is None
    assert not asked
    assert "loaded whole by each process: it has code of its own" in caplog.text


def test_weights_that_are_not_finite_are_found_before_they_are_sharded(tmp_path):
    folder = save(tmp_path, "tied")
    change(folder, model__norm__weight=torch.full((37,), torch.nan))
    model = load_model(ModelConfig(), str(folder), hollow=True)
    with reading(model), pytest.raises(ConfigError, match="are not finite"):
        PolicyScorer(model)


def test_a_frozen_model_in_bfloat16_keeps_the_frequencies_of_its_positions(tmp_path):
    model = load_model(ModelConfig(), str(save(tmp_path, "tied")))
    before = model.model.rotary_emb.inv_freq.clone()
    frozen(model, ScoreConfig(model="x", dtype="bfloat16"), "cpu")
    assert {x.dtype for x in model.parameters()} == {torch.bfloat16}
    assert torch.equal(model.model.rotary_emb.inv_freq, before)
