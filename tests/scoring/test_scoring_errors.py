"""Errors of scoring, and the arguments in its documentation."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from scoring_tools import ROWS, VOCABULARY, make_head, tiny
from torch import nn

from rlobj.base.errors import BatchError, ConfigError
from rlobj.scoring import PolicyScorer, score_samples, score_tokens

PAGE = Path(__file__).parents[2] / "docs" / "scoring.md"


@pytest.fixture(scope="module")
def scorer() -> PolicyScorer:
    """The scorer of a GPT-2 with 97 tokens and 64 learned positions."""
    return PolicyScorer(tiny("gpt2-tied"))


class Wrapped(nn.Module):
    """A wrapper with the module as an attribute, like DDP."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *arguments: Any, **settings: Any) -> Any:
        return self.module(*arguments, **settings)


def test_error_of_a_model_with_an_encoder_names_the_model():
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 97, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, num_heads=2))
    with pytest.raises(ConfigError, match="T5ForConditionalGeneration has an encoder"):
        score_samples(model, [([1], [2])])


def test_modules_without_a_scorer_are_refused(scorer):
    with pytest.raises(ConfigError, match="Wrapped is neither a PolicyScorer"):
        score_samples(Wrapped(scorer.model), [([1], [2])])


@pytest.mark.parametrize("name", ["temperature", "min_p", "scale", "softcap", "chunk_bytes"])
@pytest.mark.parametrize("value", [torch.ones(ROWS), "1"], ids=["tensor", "text"])
def test_settings_must_be_single_numbers(name, value):
    hidden, weight, targets, _ = make_head()
    with pytest.raises(ConfigError, match=f"{name} is .*expected one number"):
        score_tokens(hidden, weight, targets, **{name: value})


@pytest.mark.parametrize("name", ["hidden", "weight", "targets", "bias"])
def test_tensor_arguments_must_be_tensors(name):
    inputs = dict(zip(("hidden", "weight", "targets", "bias"), make_head(), strict=True))
    with pytest.raises(BatchError, match=f"{name} is a list; expected a torch tensor"):
        score_tokens(**{**inputs, name: inputs[name].tolist()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_masked_by_the_bias_has_probability_zero(dtype):
    hidden, weight, targets, bias = (
        x.to(dtype) if x.is_floating_point() else x for x in make_head()
    )
    bias[targets[0]] = -torch.inf
    expected = torch.log_softmax(hidden @ weight.T + bias, -1).gather(1, targets[:, None])[:, 0]
    found = score_tokens(hidden, weight, targets, bias=bias).logprobs
    torch.testing.assert_close(found, expected)
    assert found[0] == -torch.inf
    everything = torch.full((VOCABULARY,), -torch.inf, dtype=dtype)
    assert (score_tokens(hidden, weight, targets, bias=everything).logprobs == -torch.inf).all()


def test_the_docs_page_names_every_argument_of_scoring():
    arguments = inspect.signature(score_tokens).parameters
    named = set(re.findall(r"`(\w+)[=`]", PAGE.read_text(encoding="utf-8")))
    assert [name for name in arguments if name not in named] == []
