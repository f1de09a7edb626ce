"""PolicyScorer with tiny causal language models of many architectures."""

import warnings

import pytest
import torch
from scoring_tools import SEQUENCES, SIZES, plain_samples
from torch import nn

from rlobj.base.errors import ConfigError
from rlobj.scoring import PolicyScorer, score_samples

COMMON = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4)
EXPERTS |= {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
SMALL_STATE = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_state": 16, "mamba_chunk_size": 8}
RECURRENT = ("FalconH1", "Jamba", "Mamba", "Qwen3_5", "RecurrentGemma")
OPTIONS = {
    "FalconH1": SMALL_STATE,
    "Cohere2": {"logit_scale": 0.25},
    "Gemma2": {"final_logit_softcapping": 0.5},
    "Gemma3": {"final_logit_softcapping": 0.5},
    "GraniteMoe": {"logits_scaling": 4.0},
    "HyperCLOVAX": {"logits_scaling": 0.25},
    "OPT": {"word_embed_proj_dim": 32},
}
ARCHITECTURES = (
    *("Bloom", "Cohere2", "Gemma3", "Glm4Moe", "GPTNeoX", "GptOss", "GraniteMoe", "HyperCLOVAX"),
    *("Lfm2", "Llama4", "Mixtral", "Nemotron", "OPT", "Phi", "Qwen3Moe", *RECURRENT),
)
"""Those whose trunk, head or logits are made in another way than those of MODELS."""
CONFIGS = {kind: f"{kind}TextConfig" for kind in ("Gemma3", "Llama4", "Qwen3_5")}
PACKED = ["Qwen2", "Qwen3", "Qwen3Moe", "Llama", "Gemma2", "Gemma3", "Mistral", "GPT2", "Olmo2"]


def build(kind):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    options = {**COMMON, **EXPERTS, **OPTIONS.get(kind, {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = getattr(transformers, CONFIGS.get(kind, f"{kind}Config"))(**options)
        name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
        model = getattr(transformers, name)(config).float()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.filterwarnings("ignore")
def test_scores_equal_the_models_own_logits(kind):
    model = build(kind)
    expected = plain_samples(model, 0.8)
    scores = score_samples(model, SEQUENCES, temperature=0.8, entropy=True)
    found = torch.stack([scores.logprobs, scores.entropy])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.filterwarnings("ignore")
def test_packed_sequences_have_the_scores_of_padded_ones(kind, attention):
    model = build(kind)
    model.set_attn_implementation(attention)
    results = []
    for packed in (False, True):
        scorer = PolicyScorer(model, packed=packed)
        assert scorer.collate(SEQUENCES)[0].shape == ((1, 19) if packed else (4, 8))
        scores = score_samples(scorer, SEQUENCES, temperature=0.8, entropy=True)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        results.append([scores.logprobs.detach(), scores.entropy.detach(), *gradients])
        model.zero_grad()
    for alone, together in zip(*results, strict=True):
        torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.filterwarnings("ignore")
def test_models_with_a_recurrent_state_refuse_packing(kind):
    model = build(kind)
    with pytest.raises(ConfigError, match="cannot score packed sequences: layers of the kind"):
        PolicyScorer(model, packed=True)
    assert not PolicyScorer(model).packed


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("XLNetLMHeadModel", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}),
        ("BertLMHeadModel", SIZES),
        ("CpmAntForCausalLM", {**SIZES, "dim_head": 8, "dim_ff": 48}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_model_that_reads_later_tokens_is_refused(kind, options):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    model = model(model.config_class(**options))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    with pytest.raises(ConfigError, match=f"{kind} is not causal"):
        PolicyScorer(model)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("Bloom", "its trunk takes no position_ids"), ("OPT", "hidden states differ by")],
)
def test_models_whose_packed_sequences_affect_each_other_refuse_packing(kind, message):
    with pytest.raises(ConfigError, match=message):
        PolicyScorer(build(kind), packed=True)


@pytest.mark.parametrize(
    ("attention", "packed"), [("sdpa", False), ("eager", False), ("flash_attention_2", True)]
)
def test_auto_packs_only_with_flash_attention(attention, packed, monkeypatch):
    model = build("Qwen3")
    model.config._attn_implementation = attention
    if packed:  # what flash attention would compute, without a GPU
        monkeypatch.setattr(PolicyScorer, "_try_trunk", lambda self: (None, None))
    assert PolicyScorer(model).packed is packed


def test_the_packing_check_keeps_dropout_and_training_modes():
    model = build("Qwen3").train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    PolicyScorer(model, packed=True)
    assert [module.training for module in model.modules()] == before
