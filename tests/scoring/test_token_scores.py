"""rlobj.scoring.score_tokens equals the plain computation with all logits."""

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
    leaves,
    plain,
    plain_proxy,
)
from torch import nn

from rlobj.base.errors import BatchError, ConfigError
from rlobj.scoring import FILTERED, score_tokens
from rlobj.scoring import tiles as tiles_module

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


def test_min_p_of_one_keeps_all_tokens_with_the_largest_probability():
    hidden, weight = torch.ones(1, 1), torch.tensor([[3.0], [3.0], [1.0]])
    scores = score_tokens(hidden, weight, torch.tensor([1]), min_p=1.0)
    torch.testing.assert_close(scores.proxy_logprobs, torch.tensor([0.5]).log())


@pytest.mark.parametrize("rows", [2, 20, 200])
def test_an_absolute_threshold_of_a_token_s_own_probability_keeps_it_for_any_rounding(rows):
    torch.manual_seed(0)
    hidden, weight = torch.randn(rows, 256) / 16, torch.randn(4000, 256)
    targets = (hidden @ weight.T).argmax(-1)
    scores = score_tokens(hidden, weight, targets, chunk_bytes=SMALL_TILE)
    for row, logprob in enumerate(scores.logprobs.exp().tolist()):
        settings = {"min_p": min(logprob, 1.0), "relative": False, "chunk_bytes": SMALL_TILE}
        proxy = score_tokens(hidden, weight, targets, **settings).proxy_logprobs[row]
        assert abs(float(proxy)) < 1e-5
        if row > 5:
            break


@pytest.mark.parametrize("rows", [2, 20, 200])
def test_min_p_of_one_keeps_the_largest_token_for_any_rounding(rows):
    torch.manual_seed(0)
    hidden, weight = 100 * torch.randn(rows, 256), torch.randn(4000, 256)
    targets = (hidden @ weight.T).argmax(-1)
    proxy = score_tokens(hidden, weight, targets, min_p=1.0, chunk_bytes=SMALL_TILE).proxy_logprobs
    torch.testing.assert_close(proxy, torch.zeros(rows), rtol=0, atol=1e-2)


# Gradients


CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize("wanted", WANTED.values(), ids=WANTED)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_equal_plain_autograd(head, shape, wanted):
    check_gradients(head, wanted, CLOSE, **shape)


def test_gradient_of_logprobs_is_the_same_without_the_entropy(head):
    check_gradients(head, WANTED["logprobs"], CLOSE, entropy=False)


def test_a_frozen_head_has_no_gradient_and_the_hidden_states_keep_theirs(head):
    hidden, weight, targets, _ = head
    (free,) = leaves(hidden)
    score_tokens(free, weight, targets).logprobs.sum().backward()
    assert weight.grad is None
    both, weight_ = leaves(hidden, weight)
    score_tokens(both, weight_, targets).logprobs.sum().backward()
    assert torch.equal(free.grad, both.grad)


def test_the_head_has_a_gradient_if_the_trunk_is_frozen(head):
    hidden, weight, targets, _ = head
    (free,) = leaves(weight)
    score_tokens(hidden, free, targets).logprobs.sum().backward()
    (expected,) = leaves(weight)
    plain(hidden, expected, targets)[0].sum().backward()
    torch.testing.assert_close(free.grad, expected.grad)


@pytest.mark.parametrize("active", [[], [2, 5], list(range(ROWS))])
def test_backward_products_skip_rows_with_zero_gradient(head, active, monkeypatch):
    hidden, weight, targets, _ = head
    incoming = torch.zeros(ROWS, dtype=torch.float64)
    incoming[active] = 1.5
    seen = []
    sweep = tiles_module.backward_sweep
    monkeypatch.setattr(
        tiles_module,
        "backward_sweep",
        lambda *arguments: (seen.append(len(arguments[2])), sweep(*arguments)),
    )
    found, found_weight = leaves(hidden, weight)
    scores = score_tokens(found, found_weight, targets, entropy=True)
    (scores.logprobs * incoming + scores.entropy * incoming).sum().backward()
    assert seen == [len(active)]
    expected, expected_weight = leaves(hidden, weight)
    logprobs, entropy, _ = plain(expected, expected_weight, targets)
    ((logprobs + entropy) * incoming).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)
    torch.testing.assert_close(found_weight.grad, expected_weight.grad)


# Refusals


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"temperature": 0.0}, ConfigError, "temperature is 0.0"),
        ({"min_p": 1.5}, ConfigError, "min_p is 1.5"),
        ({"min_p": 0.0}, ConfigError, "min_p is 0.0"),
        ({"softcap": -1.0}, ConfigError, "softcap is -1.0"),
        ({"scale": 0.0}, ConfigError, "scale is 0.0"),
        ({"chunk_bytes": 0}, ConfigError, "chunk_bytes is 0"),
        ({"targets": torch.full((ROWS,), VOCABULARY)}, BatchError, "vocabulary of 301"),
        ({"targets": torch.full((ROWS,), -100)}, BatchError, "the first is -100, in row 0"),
        ({"targets": torch.zeros(ROWS)}, BatchError, "float32"),
        ({"targets": torch.zeros(2, dtype=torch.long)}, BatchError, "13 token ids"),
        ({"weight": torch.zeros(5, 3)}, BatchError, r"\[5, 3\]"),
        ({"bias": torch.zeros(5)}, BatchError, r"bias has shape \[5\]"),
    ],
)
def test_invalid_arguments_raise_an_error(head, change, error, says):
    hidden, weight, targets, _ = head
    arguments = {"hidden": hidden, "weight": weight, "targets": targets, **change}
    with pytest.raises(error, match=says):
        score_tokens(**arguments)
