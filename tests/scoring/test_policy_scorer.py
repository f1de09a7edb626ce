"""PolicyScorer: scores equal the logits of the model."""

import pytest
import torch
from scoring_tools import MODELS, SEQUENCES, check_samples, tiny
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from rlobj.base.errors import ConfigError
from rlobj.scoring import PolicyScorer, score_samples
from rlobj.scoring import tiles as tiles_module


class Wrapped(nn.Module):
    """A wrapper with the module as an attribute, like DDP."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *arguments, **settings):
        return self.module(*arguments, **settings)


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


def test_a_scorer_may_be_wrapped_and_a_model_that_is_wrapped_is_refused():
    model = tiny("llama")
    expected = score_samples(model, SEQUENCES).logprobs
    assert torch.equal(score_samples(Wrapped(PolicyScorer(model)), SEQUENCES).logprobs, expected)
    with pytest.raises(ConfigError, match="Wrapped is no causal model"):
        score_samples(Wrapped(model), SEQUENCES)


@pytest.mark.parametrize("sequences", [[], [([1, 2], []), ([], [])]], ids=["none", "empty"])
def test_no_response_tokens_give_empty_scores_with_a_graph_through_all_parameters(sequences):
    model = tiny("qwen3-untied")
    scores = score_samples(model, sequences, entropy=True)
    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.any()] == []


def test_a_trunk_in_bfloat16_gives_float32_scores():
    assert (
        score_samples(tiny("gemma2-softcap", torch.bfloat16), SEQUENCES).logprobs.dtype
        == torch.float32
    )
    model = tiny("llama")
    exact = score_samples(model, SEQUENCES).logprobs.detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = score_samples(PolicyScorer(model), SEQUENCES, entropy=True)
    scores.logprobs.sum().backward()
    assert scores.logprobs.dtype == torch.float32
    assert (scores.logprobs - exact).abs().max() < 0.1
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_models_that_treat_their_logits_in_an_unknown_way_are_refused():
    model = tiny("llama")
    forward = model.forward

    def tripled(*arguments, **options):
        outputs = forward(*arguments, **options)
        outputs.logits = outputs.logits * 3
        return outputs

    model.forward = tripled
    with pytest.raises(ConfigError, match="LlamaForCausalLM computes its logits in a way"):
        PolicyScorer(model)
    model = tiny("llama")
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ConfigError, match="head of LlamaForCausalLM is a Sequential"):
        PolicyScorer(model)
    sizes = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    model = T5ForConditionalGeneration(T5Config(**sizes, num_heads=2))
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration has an encoder"):
        PolicyScorer(model)
