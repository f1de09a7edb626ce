"""PolicyScorer: scores equal the logits of the model."""

import forked
import pytest
import torch
from scoring_tools import MODELS, SEQUENCES, SIZES, check_samples, tiny
from torch import nn

from rlobj.base.errors import ConfigError
from rlobj.scoring import PolicyScorer, score_samples
from rlobj.scoring import tiles as tiles_module


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_samples_and_all_gradients_equal_those_of_the_models_logits(name):
    model = tiny(name, torch.float64)
    scores, wanted = check_samples(model)
    assert scores.proxy_logprobs.shape == (7,)
    assert wanted.keys() == dict(model.named_parameters()).keys()


def test_the_scorer_computes_no_logits_for_prompt_tokens(monkeypatch):
    model = tiny("qwen3-tied")
    seen = []
    sweep = tiles_module.forward_sweep
    monkeypatch.setattr(
        tiles_module, "forward_sweep", lambda *a, **k: (seen.append(len(a[2])), sweep(*a, **k))[1]
    )
    scorer = PolicyScorer(model)
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("the head made logits"))
    score_samples(scorer, SEQUENCES)
    assert seen == [7]


def test_samples_without_response_tokens_give_a_graph_through_all_parameters():
    model = tiny("qwen3-untied")
    scores = score_samples(model, [([1, 2], []), ([], [])], entropy=True)
    assert scores.logprobs.shape == (0,)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_the_scorer_keeps_training_mode_and_parameters_of_the_model():
    model = tiny("gpt2-tied").train()
    scorer = PolicyScorer(model)
    assert all(module.training for module in model.modules())
    assert {f"model.{name}" for name, _ in model.named_parameters()} == {
        name for name, _ in scorer.named_parameters()
    }


@pytest.mark.slow
def test_a_scorer_can_be_wrapped_in_data_parallel():
    """Runs in another process that exits without joining its threads, which could deadlock."""
    program = """
import os
import torch
from torch import distributed, nn
from transformers import LlamaConfig, LlamaForCausalLM
from rlobj.scoring import PolicyScorer, score_samples
torch.set_num_threads(1)
model = LlamaForCausalLM(LlamaConfig(vocab_size=97, hidden_size=32, intermediate_size=48,
                                     num_hidden_layers=1, num_attention_heads=4))
sequences = [([5, 6, 7], [8, 9]), ([1], []), ([2], [3])]
expected = score_samples(model, sequences, entropy=True)
expected.logprobs.sum().backward()
gradients = [parameter.grad for parameter in model.parameters()]
model.zero_grad()
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(PolicyScorer(model))
scores = score_samples(wrapped, sequences, entropy=True)
scores.logprobs.sum().backward()
torch.testing.assert_close(scores.logprobs, expected.logprobs)
for parameter, gradient in zip(model.parameters(), gradients, strict=True):
    torch.testing.assert_close(parameter.grad, gradient)
print("equal", flush=True)
os._exit(0)
"""
    done = forked.run(["-c", program])
    assert done.stdout == "equal\n", done.stderr


def test_autocast_trunk_gives_float32_scores_and_gradients():
    model = tiny("llama")
    exact = score_samples(model, SEQUENCES).logprobs.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score_samples(PolicyScorer(model), SEQUENCES, entropy=True)
    scores.logprobs.sum().backward()
    assert scores.logprobs.dtype == torch.float32
    assert (scores.logprobs - exact).abs().max() < 0.1
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_a_bfloat16_model_passes_the_check_of_its_logits():
    scores = score_samples(tiny("gemma2-softcap", torch.bfloat16), SEQUENCES)
    assert scores.logprobs.dtype == torch.float32


def test_error_of_an_unknown_treatment_of_logits_names_the_settings():
    model = tiny("llama")
    forward = model.forward

    def tripled(*arguments, **options):
        outputs = forward(*arguments, **options)
        outputs.logits = outputs.logits * 3
        return outputs

    model.forward = tripled
    model.config.logit_tripling = 3.0
    with pytest.raises(ConfigError, match=r"LlamaForCausalLM .* logit_tripling=3\.0"):
        PolicyScorer(model)


@pytest.mark.parametrize(("kind", "scale"), [("Granite", 0.25), ("HyperCLOVAX", 4.0)])
def test_logits_scaling_divides_or_multiplies_as_in_the_model(kind, scale):
    model = tiny((kind, {**SIZES, "logits_scaling": 4.0}))
    assert PolicyScorer(model).shape.scale == scale


def test_a_head_that_is_not_linear_is_refused():
    model = tiny("llama")
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ConfigError, match="head of LlamaForCausalLM is a Sequential"):
        PolicyScorer(model)


def test_no_sequences_give_empty_scores_with_a_graph_through_all_parameters():
    model = tiny("llama")
    scores = score_samples(model, [], entropy=True)
    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    (scores.logprobs.sum() * 0).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.any()] == []
