"""The memory that a run needs: beside what torch holds, and refused where the GPU has less."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_policy
from benchmarks.harness import ask
from tiny import EIGHT
from transformers import (
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Qwen3Config,
)

import rlobj
from rlobj.base.errors import ConfigError, Setting
from rlobj.models.adapters import with_adapters
from rlobj.models.checking import UnreadableModel
from rlobj.settings.building import compose
from rlobj.settings.run_config import LoraConfig, ModelConfig, RunConfig
from rlobj.settings.sampling import DynamicSampling
from rlobj.sizing.activations import MicroBatch
from rlobj.sizing.fitting import choose, require_memory, ways, with_settings
from rlobj.sizing.memory import estimate
from rlobj.sizing.sizes import GIB, Cards, Size
from rlobj.sizing.workload import work


def run(**sections: Any) -> RunConfig:
    above = {"model": {"name": "an/8B", **sections.pop("model", {})}, "data": {"source": "x.jsonl"}}
    return compose("grpo", [("here", {**above, **sections})])


def test_a_reward_model_without_a_decoder_counts_with_its_own_parameters(tmp_path, caplog):
    settings = DistilBertConfig(dim=64, hidden_dim=96, n_layers=2, n_heads=2, num_labels=1)
    settings.save_pretrained(tmp_path)
    config = run(rewards={"kind": "reward_model", "model": str(tmp_path)})
    found = estimate(config, EIGHT, "ddp", 1).parts["reward model"]
    with torch.device("meta"):
        judge = DistilBertForSequenceClassification(settings)
    assert found.scoring == 4 * sum(parameter.numel() for parameter in judge.parameters())
    assert not caplog.text


def test_each_model_of_a_score_of_several_counts(tmp_path):
    settings = Qwen3Config(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=99)
    settings.architectures = ["Qwen3ForCausalLM"]
    settings.save_pretrained(tmp_path)
    half, server = {"model": str(tmp_path), "dtype": "bfloat16"}, {"server": "http://127.0.0.1:1"}
    teacher = {"by": "kind", "models": {"math": str(tmp_path), "code": half, "other": server}}
    objective = {"shape": "teacher_gap", "penalties": []}
    parts = estimate(run(objective=objective, scores={"teacher": teacher}), EIGHT, "zero3", 2).parts
    total = Size.named(ModelConfig(name=str(tmp_path)), local=True).total
    found = {name: use.scoring for name, use in parts.items() if name.startswith("score")}
    bytes_of = {"math": 4 * total / 2, "code": 2 * total / 2}  # in shards
    assert found == {f"score teacher.models.{key}": size for key, size in bytes_of.items()}


def test_ddp_holds_the_bytes_that_torch_measures():
    model = build_policy(0)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.tensor([[1, 2]])).logits.sum().backward()
    optimizer.step()
    states = [each for state in optimizer.state.values() for each in state.values()]
    found = estimate(compose("grpo"), Size.of(model, None), "ddp", 1).parts
    of = {"weights": [*model.parameters()], "gradients": [p.grad for p in model.parameters()]}
    for name, tensors in {**of, "moments": states}.items():
        measured = sum(each.nbytes for each in tensors if each is not None)
        assert 0.99 * measured < found[name].optimizer <= measured, name
    assert found["gradients"].scoring == 0


def test_the_parameters_are_those_of_the_model_and_of_its_adapters(tmp_path):
    config = Qwen3Config(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=99)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    settings = LoraConfig(rank=3)
    size = Size.named(ModelConfig(name=str(tmp_path)), local=True)
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM(config)
    assert size.total == sum(p.numel() for p in model.parameters())
    adapted = with_adapters(model, settings, None)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    assert trained == 3 * size.adapters
    with pytest.raises(UnreadableModel, match=r"config\.json of nobody/has-this-model: OSError"):
        Size.named(ModelConfig(name="nobody/has-this-model"), local=True)


@pytest.mark.parametrize(
    ("strategy", "ranks", "sampling", "update"),
    [
        ("ddp", 1, 12, 16),
        ("ddp", 8, 16, 20),
        ("zero2", 4, 7, 8),
        ("zero3", 4, 4, 5),
        ("fsdp2", 8, 1.5, 2),
    ],
)
def test_bytes_a_parameter_of_the_strategies(strategy, ranks, sampling, update):
    """Weights, ZeRO's copy of them, gradients and moments of Qwen3-8B."""
    parts = estimate(run(), EIGHT, strategy, ranks).parts
    own = ["weights", "weights that ZeRO updates", "gradients", "moments"]
    own += ["buckets of gradients"] * (strategy == "ddp")
    held = [parts[name] for name in own if name in parts]
    assert sum(each.sampling for each in held) == sampling * EIGHT.total
    assert sum(each.backward for each in held) == update * EIGHT.total


def test_offload_moves_moments_to_the_host():
    usual = estimate(run(), EIGHT, "zero2", 4, 80 * GIB)
    moved = estimate(run(training={"offload": "cpu"}), EIGHT, "zero2", 4, 80 * GIB)
    assert usual.needed.sampling - moved.needed.sampling == 3 * EIGHT.total
    assert moved.host - usual.host == (1 + 1 + 2 + 1) * EIGHT.total
    whole = [estimate(run(training={"offload": x}), EIGHT, "fsdp2", 4) for x in (None, "cpu")]
    assert whole[0] == whole[1]
    auto = run(training={"offload": "cpu", "strategy": "auto"})
    values = {each.setting: each.value for each in choose(auto, EIGHT, Cards(8, 80 * GIB))}
    assert values["training.strategy"] == "zero2"


def test_a_checkpoint_copies_a_share_of_weights_and_moments_to_the_host():
    alone, four = (estimate(run(), EIGHT, "fsdp2", ranks, 80 * GIB).host for ranks in (1, 4))
    assert alone - four == 12 * EIGHT.total * 3 / 4
    many = estimate(run(), EIGHT, "fsdp2", 64, 80 * GIB).host
    assert many == 3 * GIB + 4 * EIGHT.matrix  # while it loads
    lora = estimate(run(model={"lora": {"rank": 2}}), EIGHT, "ddp", 1, 80 * GIB).host
    assert lora == 3 * GIB + 4 * EIGHT.total + 8 * 2 * EIGHT.adapters


def test_copies_and_vllm_are_counted_where_a_run_has_them():
    kl = {"penalties": [{"kind": "kl", "estimator": "k3", "coefficient": 0.1}]}
    vllm = {"engine": "vllm", "max_tokens": 7168, "vllm": {"sleep_level": 0}}
    awake = estimate(run(objective=kl, sampling=vllm), EIGHT, "ddp", 1, 80 * GIB)
    assert awake.parts["reference model"] == (4 * EIGHT.total,) * 4
    assert awake.parts["vLLM"] == (40 * GIB,) * 4
    cache = 40 * GIB - 2 * EIGHT.total - 2 * GIB
    assert awake.sequences == cache // (8192 * 36 * 2 * 1024 * 2) == 20
    asleep = {"engine": "vllm", "vllm": {"kv_cache_bytes": GIB, "sleep_level": 1}}
    small = run(objective=kl, sampling=asleep, model={"lora": {"rank": 2}})
    found = estimate(small, EIGHT, "zero3", 2, 80 * GIB)
    assert found.parts["vLLM"] == (2 * EIGHT.total + GIB, 0, 0, 0)
    assert found.parts["frozen weights"] == (2 * EIGHT.total,) * 4
    assert found.parts["moments"].sampling == 8 * EIGHT.adapters
    assert "reference model" not in found.parts
    level_2 = with_settings(small, {"sampling.vllm.sleep_level": 2})
    saved = found.host - estimate(level_2, EIGHT, "zero3", 2, 80 * GIB).host
    assert saved == 2 * EIGHT.total


def with_value(**settings: Any) -> dict[str, Any]:
    """Sections of a run with a value."""
    values = [{"kind": "clipped_squared"}]
    objective = {"advantage": {"kind": "gae"}, "values": values, "penalties": []}
    return {"objective": objective, "scores": {"critic": {"value": True, **settings}}}


@pytest.mark.parametrize("tied", [True, False])
def test_the_parameters_of_a_value_are_those_of_a_classifier_of_tokens_with_one_label(tied):
    config = Qwen3Config(hidden_size=64, num_hidden_layers=2, intermediate_size=96, vocab_size=99)
    config.tie_word_embeddings = tied
    with torch.device("meta"):
        policy = AutoModelForCausalLM.from_config(config)
        config.num_labels = 1
        value = AutoModelForTokenClassification.from_config(config)
    size = Size.of(policy, None).of_value()
    assert size.total == sum(parameter.numel() for parameter in value.parameters())
    assert size.ends == 64 * 99


@pytest.mark.parametrize(
    ("strategy", "ranks", "kept"),
    [("ddp", 1, 12), ("ddp", 8, 16), ("zero2", 4, 7), ("zero3", 4, 4), ("fsdp2", 8, 1.5)],
)
def test_a_value_adds_its_weights_and_moments_to_each_phase(strategy, ranks, kept):
    """Its update comes before the policy's, and its gradients and activations are freed then."""
    value = EIGHT.of_value()
    alone = estimate(run(objective={"penalties": []}), EIGHT, strategy, ranks, 80 * GIB)
    both = estimate(run(**with_value()), EIGHT, strategy, ranks, 80 * GIB)
    assert both.parts["value critic"] == (kept * value.total,) * 4
    assert max(both.parts["update of the value"]) < 1e-5 * GIB  # of its head
    assert both.needed.backward - alone.needed.backward == kept * value.total
    adapted = estimate(run(**with_value(lora={"rank": 2})), EIGHT, "ddp", 1, 80 * GIB)
    frozen = adapted.parts["value critic"].sampling
    assert frozen == 4 * value.total + 12 * 2 * EIGHT.adapters


def test_a_larger_value_needs_more_for_its_update(tmp_path):
    config = Qwen3Config(hidden_size=512, num_hidden_layers=9, intermediate_size=999, vocab_size=99)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    value = Size.named(ModelConfig(name=str(tmp_path)), local=True).of_value()
    small = Size(1_000_000, 0, 2, 64, 64, 64, 2, 256, 99, tied=True)
    settings = run(**with_value(model=str(tmp_path)), training={"micro_batch_tokens": 4096})
    parts = estimate(settings, small, "ddp", 1).parts
    assert parts["value critic"].sampling == 12 * value.total
    policy, its = MicroBatch(small, 4096), MicroBatch(value, 4096, logits=False)
    gradients = 4 * (value.total - small.total)
    more = its.kept() + its.backward() - policy.kept() - policy.backward()
    assert parts["update of the value"].backward == pytest.approx(gradients + more)


def test_a_value_of_the_policys_size_offloads_as_much_as_the_policy():
    offload = {"training": {"offload": "cpu"}}
    alone = estimate(run(**offload), EIGHT, "zero2", 4, 80 * GIB)
    both = estimate(run(**with_value(), **offload), EIGHT, "zero2", 4, 80 * GIB)
    assert both.parts["value critic"].sampling == 4 * EIGHT.of_value().total
    assert both.host - alone.host == pytest.approx(5 * EIGHT.of_value().total)


def test_what_is_chosen_fits_the_policy_and_its_value():
    half = Size(500_000_000, 0, 24, 896, 896, 128, 14, 4864, 151936, tied=True)
    cards = Cards(2, 12 * GIB)
    several = {"sampling": {"engine": "vllm-server", "max_tokens": 1024}}
    alone, both = (
        {each.setting: each.value for each in choose(config, half, cards)}
        for config in (run(**several), run(**several, **with_value()))
    )
    assert (alone["training.strategy"], both["training.strategy"]) == ("ddp", "fsdp2")
    config = with_settings(run(**several, **with_value()), both)
    assert estimate(config, half, "fsdp2", 2, cards.bytes).fits


@pytest.mark.parametrize(
    ("text", "count", "memory", "kind"),
    [
        ("80", 1, 80, "H100"),
        ("2 x 141GB", 2, 141, "H200"),
        ("8xA100", 8, 80, "A100"),
        ("l40s", 1, 48, "L40S"),
    ],
)
def test_cards_are_read_from_a_text(text, count, memory, kind):
    assert Cards.parse(text) == Cards(count, int(memory * GIB), kind)


def test_activations_of_qwen3_8b_by_hand():
    """Bytes of a token, as the docstring of `MicroBatch.layer` lists them."""
    float32 = 6 * 4 * 4096 + (3 + 1) * 4 * 4096 + (3 + 1) * 4 * 1024 + 4 * 4 * 12288 + 4 * 32
    copies = 4 * 4 * 4096 + 5 * 2 * 4096  # of the norms, and what the five linear layers read
    heads = (4 + 2 + 2 + 2) * 4096 + (4 + 2 + 2 + 2) * 1024 + 4 * 32
    assert MicroBatch(EIGHT, 100).layer() == 100 * float32
    half = MicroBatch(EIGHT, 100, half=True)
    assert half.layer() == 100 * (copies + heads + 4 * 2 * 12288)
    again = MicroBatch(EIGHT, 100, half=True, recompute=True)
    assert again.kept() == 100 * (36 + 3) * 4 * 4096
    assert half.kept() == 36 * half.layer() + 100 * 3 * 4 * 4096
    assert half.tile() == 1.5 * 100 * 4 * 151936  # less than 512 MiB
    assert MicroBatch(EIGHT, 16384, half=True).tile() == 1.5 * 512 * 2**20
    value = MicroBatch(EIGHT.of_value(), 16384, half=True, logits=False)
    assert (value.tile(), value.kept()) == (0, MicroBatch(EIGHT, 16384, half=True).kept())
    assert value.backward() == 16384 * 2 * 2 * 12288 + 2 * 16384 * 4 * 4096  # inside its MLP


def test_tokens_and_hours_of_qwen3_8b_by_hand():
    config = run(
        sampling={"prompts_per_step": 16, "group_size": 4, "max_tokens": 2048, "engine": "vllm"},
        training={"steps": 100, "gradient_checkpointing": True},
        data={"source": "x.jsonl", "max_prompt_tokens": 256},
        evaluation={"every": 0},
    )
    cards = Cards(8, 80 * GIB)
    memory = estimate(config, EIGHT, "fsdp2", 8, cards.bytes)
    done = work(config, EIGHT, memory, cards)
    tokens = 64 * (1024 + 256)
    assert (done.responses, done.mean, done.tokens) == (64, 1024, tokens)
    computing = EIGHT.total - 151936 * 4096
    forward = tokens * (2 * computing + 2 * 36 * 4096 * 1280) / (8 * 989e12 * 0.3)
    assert done.seconds["update"] == pytest.approx(4 * forward)
    reading = 2 * EIGHT.total + 8 * 36 * 2 * 1024 * 2 * 512
    assert done.seconds["generation"] == pytest.approx(2048 * reading / (3.35e12 * 0.5))
    assert done.hours == pytest.approx(100 * sum(done.seconds.values()) / 3600)
    server = {"sampling.engine": "vllm-server", "sampling.schedule": "continuous"}
    beside = work(with_settings(config, server), EIGHT, memory, cards)
    both = beside.seconds["generation"], sum(beside.seconds.values())
    assert beside.step == pytest.approx(max(both[0], both[1] - both[0]))
    three = {"whole_batches": True, "oversampling": 3.0}
    drawn = work(
        with_settings(config, {"sampling.dynamic": DynamicSampling(**three)}), EIGHT, memory, cards
    )
    assert (drawn.responses, drawn.tokens) == (192, tokens)
    several = {"training.updates_per_step": 4}
    without = {**several, "training.old_logprobs": "sampler"}
    scoring = [
        work(with_settings(config, more), EIGHT, memory, cards).seconds["scoring"]
        for more in ({}, several, without)
    ]
    assert scoring == pytest.approx([0, forward, 0])
    parts = with_settings(run(**with_value(updates=2)), {"sampling.engine": "vllm"})
    critic = with_settings(config, {"objective": parts.objective, "scores": parts.scores})
    body = forward * (1 - 2 * 151936 * 4096 / (2 * computing + 2 * 36 * 4096 * 1280))
    values = work(critic, EIGHT, memory, cards).seconds["value"]
    assert values == pytest.approx((1 + 2 * 4) * body, rel=1e-3)
    slow = work(with_settings(config, {"sampling.engine": "transformers"}), EIGHT, memory, cards)
    assert slow.seconds["generation"] == 2048 * 0.025  # eight responses at a time


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"preset": "ppo"}], ids=["policy", "policy and value"])
def test_a_measured_peak_is_near_the_estimate(settings):
    """A real update of 110 million parameters in a process of its own."""
    question = {"shape": "llama 110M", "strategy": "ddp", "tokens": 256, "rows": 1}
    [found] = ask("benchmarks.estimate", {**question, "settings": settings})
    assert found["predicted"] == pytest.approx(found["measured"], rel=0.15)


def test_a_small_model_needs_no_sharding_and_no_recomputation():
    small = Size(100_000_000, 0, 12, 768, 768, 768, 12, 2048, 32000, context=4096)
    found = choose(run(sampling={"max_tokens": 512}), small, Cards(2, 80 * GIB))
    values = {each.setting: each.value for each in found}
    assert values["training.strategy"] == "ddp"
    assert values["training.gradient_checkpointing"] is False


def test_a_run_that_cannot_fit_is_told_what_can():
    vllm = run(sampling={"engine": "vllm"})
    found = ways(vllm, EIGHT, "ddp", Cards(8, 80 * GIB))
    with pytest.raises(ConfigError) as error:
        require_memory(vllm, EIGHT, "ddp", Cards(8, 80 * GIB))
    assert found
    assert all(memory.fits for _, memory in found)
    assert all(f"\n  {way}: " in str(error.value) for way, _ in found[:3])
    assert Setting("training.strategy", "fsdp2") in found[0][0].parts
    assert "model.lora.rank=16 " in str(error.value)
    with pytest.raises(ConfigError, match="a smaller model, or LoRA and fsdp2"):
        require_memory(vllm, EIGHT, "ddp", Cards(1, 2 * GIB))


def test_a_run_whose_long_responses_do_not_fit_is_warned(caplog):
    small = Size(1_720_574_976, 0, 28, 2048, 2048, 1024, 16, 6144, 151936, tied=True, normed=True)
    config = run(sampling={"engine": "vllm", "max_tokens": 15360, "vllm": {"sleep_level": 2}})
    memory = estimate(config, small, "ddp", 1, 80 * GIB)
    assert not memory.fits
    assert not memory.hopeless
    require_memory(config, small, "ddp", Cards(1, 80 * GIB))
    assert "the run may need more memory than the GPU has" in caplog.text
    assert " training.gradient_checkpointing=true" in caplog.text


def test_training_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("rlobj.training.loop.opening.own_card", lambda: 1_000_000)
    with pytest.raises(ConfigError, match="the run cannot fit the GPU: a process needs"):
        rlobj.train("grpo", data="max-digits", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
