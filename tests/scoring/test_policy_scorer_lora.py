"""LoRA: scores equal the model's logits; adapters of the head are refused."""

import warnings

import pytest
import torch
from scoring_tools import SEQUENCES, check_samples, plain_samples, tiny

from rlobj.base.errors import ConfigError
from rlobj.scoring import PolicyScorer, score_samples

peft = pytest.importorskip("peft")


def adapted(name="qwen3-untied", targets=("q_proj", "down_proj")):
    """A tiny model in float64 with adapters whose B is not zero."""
    config = peft.LoraConfig(r=3, lora_alpha=12, target_modules=list(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft has something to say of tied heads
        model = peft.get_peft_model(tiny(name, torch.float64), config, autocast_adapter_dtype=False)
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


@pytest.mark.parametrize("name", ["qwen3-tied", "qwen3-untied", "gemma2-softcap", "granite-scale"])
def test_scores_and_gradients_equal_those_of_peft(name):
    _, wanted = check_samples(adapted(name))
    assert len(wanted) >= 2


def test_a_model_with_disabled_adapters_scores_like_its_base_model():
    model = adapted()
    scorer = PolicyScorer(model)
    with model.disable_adapter():
        found = score_samples(scorer, SEQUENCES).logprobs
        expected = plain_samples(model, 1.0)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert (score_samples(scorer, SEQUENCES).logprobs - expected).abs().max() > 0.01


def test_adapters_on_the_head_are_refused():
    with pytest.raises(ConfigError, match="without an adapter"):
        PolicyScorer(adapted(targets=["lm_head"]))
