"""rlobj.scoring.score_tokens equals the plain computation with all logits."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from scoring_tools import (
    ROWS,
    SHAPES,
    SMALL_TILE,
    VOCABULARY,
    WANTED,
    against_plain,
    assert_close,
    check_gradients,
    plain,
    plain_proxy,
)
from torch import nn

from rlobj.base.errors import BatchError, ConfigError
from rlobj.scoring import FILTERED, score_tokens

# Values


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_scores_equal_the_plain_computation(head, shape, with_bias):
    hidden, weight, targets, bias = head
    inputs = (hidden, weight, bias) if with_bias else (hidden, weight)
    _, values, _ = against_plain(inputs, targets, **shape)
    assert_close(values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunk_bytes", [SMALL_TILE, None], ids=["second-sweep", "whole-rows"])
@pytest.mark.parametrize("sharpness", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("relative", [True, False])
def test_detached_columns_equal_their_definitions(
    head, sharpness, temperature, relative, chunk_bytes
):
    hidden, weight, targets, bias = head
    weight = weight * sharpness
    targets = targets.clone()
    targets[6:] = (hidden @ weight.T + bias).argmax(-1)[6:]
    shape = {"temperature": temperature, "bias": bias}
    columns = {"min_p": 0.05, "relative": relative, "collision": True, "sensitivity": True}
    options = {"chunk_bytes": chunk_bytes, **columns, **shape}
    scores = score_tokens(hidden.requires_grad_(), weight, targets, **options)
    logprobs, entropy, everything = plain(hidden, weight, targets, **shape)
    probs = everything.exp()
    proxy = plain_proxy(everything, targets, 0.05, FILTERED, relative)
    sensitivity = logprobs.exp() * (logprobs + entropy)
    sensitivity = sensitivity - (probs**2 * (everything + entropy[:, None])).sum(-1)
    torch.testing.assert_close(scores.proxy_logprobs, proxy, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores.collision, (probs**2).sum(-1).detach())
    torch.testing.assert_close(scores.entropy_sensitivity, sensitivity.detach())
    if sharpness == 3.0:
        assert (proxy == FILTERED).any()
        assert (proxy > FILTERED).any()
    assert scores.entropy is None
    for column in (scores.proxy_logprobs, scores.collision, scores.entropy_sensitivity):
        assert not column.requires_grad


def test_entropy_sensitivity_predicts_the_entropy_after_a_small_step(head):
    hidden, weight, targets, _ = head
    logits, step = hidden @ weight.T, 1e-6
    rows, identity = logits, torch.eye(VOCABULARY, dtype=torch.float64)
    scores = score_tokens(rows, identity, targets, sensitivity=True)
    probs = torch.softmax(logits, -1)
    direction = nn.functional.one_hot(targets, VOCABULARY) - probs  # the gradient of l, A = 1
    after = score_tokens(rows + step * direction, identity, targets, entropy=True).entropy
    before = score_tokens(rows - step * direction, identity, targets, entropy=True).entropy
    slope = (after - before) / (2 * step)
    torch.testing.assert_close(-scores.entropy_sensitivity, slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rows", [2, 20, 200])
def test_a_threshold_of_a_token_s_own_probability_keeps_it_for_any_rounding(rows):
    torch.manual_seed(0)
    hidden, weight = torch.randn(rows, 256), torch.randn(4000, 256)
    targets = (hidden @ weight.T).argmax(-1)
    inputs, options = (hidden / 16, weight, targets), {"chunk_bytes": SMALL_TILE}
    probs = score_tokens(*inputs, **options).logprobs.exp().clamp(max=1).tolist()
    for row, prob in enumerate(probs[:6]):
        proxy = score_tokens(*inputs, min_p=prob, relative=False, **options).proxy_logprobs[row]
        assert abs(float(proxy)) < 1e-5
    proxy = score_tokens(100 * hidden, weight, targets, min_p=1.0, **options).proxy_logprobs
    torch.testing.assert_close(proxy, torch.zeros(rows), rtol=0, atol=1e-2)


# Gradients


CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_equal_plain_autograd(head, shape, wanted):
    check_gradients(head, wanted, CLOSE, **shape)


def test_gradient_of_logprobs_is_the_same_without_the_entropy(head):
    check_gradients(head, WANTED["logprobs"], CLOSE, entropy=False)


# Refusals


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"temperature": 0.0}, ConfigError, "temperature is 0.0"),
        ({"min_p": 1.5}, ConfigError, "min_p is 1.5"),
        ({"scale": math.nan}, ConfigError, "scale is nan"),
        ({"scale": 0.0}, ConfigError, "scale is 0.0"),
        ({"softcap": -1.0}, ConfigError, "softcap is -1.0"),
        ({"softcap": 0.0}, ConfigError, "softcap is 0.0"),
        ({"chunk_bytes": 0}, ConfigError, "chunk_bytes is 0"),
        ({"bias": torch.zeros(VOCABULARY + 1)}, BatchError, r"bias is \[302\]; expected \[301\]"),
        ({"targets": torch.full((ROWS,), VOCABULARY)}, BatchError, "vocabulary of 301"),
        ({"targets": torch.full((ROWS,), -100)}, BatchError, "targets has -100"),
        ({"targets": torch.zeros(ROWS)}, BatchError, "float32"),
        ({"targets": torch.zeros(2, dtype=torch.long)}, BatchError, "13 token ids"),
    ],
)
def test_invalid_arguments_raise_an_error(head, change, error, says):
    hidden, weight, targets, _ = head
    arguments = {"hidden": hidden, "weight": weight, "targets": targets, **change}
    with pytest.raises(error, match=says):
        score_tokens(**arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_target_masked_by_the_bias_has_probability_zero(head, dtype):
    hidden, weight, targets, bias = (x.to(dtype) if x.is_floating_point() else x for x in head)
    bias[targets[0]] = -torch.inf
    found = score_tokens(hidden, weight, targets, bias=bias).logprobs
    torch.testing.assert_close(found, plain(hidden, weight, targets, bias=bias)[0])
    assert found[0] == -torch.inf
    everything = torch.full_like(bias, -torch.inf)
    assert (score_tokens(hidden, weight, targets, bias=everything).logprobs == -torch.inf).all()


def test_the_docs_page_names_every_argument_of_scoring():
    page = Path(__file__).parents[2] / "docs" / "scoring.md"
    named = set(re.findall(r"`(\w+)[=`]", page.read_text(encoding="utf-8")))
    assert [x for x in inspect.signature(score_tokens).parameters if x not in named] == []
