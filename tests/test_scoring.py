"""rlobj.scoring against the plain computation that holds all logits."""

import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rlobj.errors import BatchError, ConfigError
from rlobj.scoring import (
    FILTERED,
    PolicyScorer,
    ScoredSequence,
    micro_batches,
    pad_sequences,
    score_samples,
    score_tokens,
    tile_columns,
)
from rlobj.scoring import tiles as tiles_module

ROWS, WIDTH, VOCABULARY = 13, 8, 301
SMALL_TILE = 1  # bytes: tiles of the least width, 128 columns, so 301 takes three


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def head():
    """hidden, weight, targets, bias in float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    targets[:4] = torch.tensor([0, 127, 128, VOCABULARY - 1])  # the edges of the tiles
    return normal(ROWS, WIDTH), normal(VOCABULARY, WIDTH), targets, normal(VOCABULARY)


def plain(hidden, weight, targets, *, temperature=1.0, bias=None, scale=1.0, softcap=None):
    """log-probs of the targets, entropy and all log-probs, from all logits at once."""
    logits = (hidden @ weight.T + (0 if bias is None else bias)) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = torch.log_softmax(logits / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy, logprobs


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


def gradients(hidden, weight, bias, score, by_logprob, by_entropy):
    hidden, weight, bias = leaves(hidden, weight, bias)
    logprobs, entropy = score(hidden, weight, bias)
    loss = 0
    if by_logprob is not None:
        loss = loss + (logprobs * by_logprob).sum()
    if by_entropy is not None:
        loss = loss + (entropy * by_entropy).sum()
    loss.backward()
    return hidden.grad, weight.grad, bias.grad


# Values


SHAPES = {
    "bare": {},
    "temperature": {"temperature": 0.7},
    "scale": {"scale": -0.3, "temperature": 1.3},
    "softcap": {"softcap": 2.0},
    "softcap-scale-temperature": {"softcap": 1.5, "scale": 0.5, "temperature": 0.6},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_equal_the_plain_computation(head, shape, with_bias):
    hidden, weight, targets, bias = head
    shape = {**shape, "bias": bias if with_bias else None}
    scores = score_tokens(hidden, weight, targets, entropy=True, chunk_bytes=SMALL_TILE, **shape)
    logprobs, entropy, _ = plain(hidden, weight, targets, **shape)
    torch.testing.assert_close(scores.logprobs, logprobs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scores.entropy, entropy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sharpness", [0.05, 1.0, 3.0])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_detached_columns_equal_their_definitions(head, sharpness, temperature):
    hidden, weight, targets, bias = head
    weight = weight * sharpness
    targets = targets.clone()
    targets[6:] = (hidden @ weight.T + bias).argmax(-1)[6:]
    scores = score_tokens(
        hidden.requires_grad_(),
        weight,
        targets,
        temperature=temperature,
        min_p=0.05,
        collision=True,
        sensitivity=True,
        bias=bias,
        chunk_bytes=SMALL_TILE,
    )
    logprobs, entropy, everything = plain(
        hidden, weight, targets, temperature=temperature, bias=bias
    )
    probs = everything.exp()
    kept = probs >= 0.05 * probs.amax(-1, keepdim=True)
    proxy = torch.log_softmax(everything.masked_fill(~kept, -torch.inf), -1)
    proxy = proxy.gather(1, targets[:, None])[:, 0]
    proxy = torch.where(torch.isinf(proxy), FILTERED, proxy)
    sensitivity = logprobs.exp() * (logprobs + entropy)
    sensitivity = sensitivity - (probs**2 * (everything + entropy[:, None])).sum(-1)
    torch.testing.assert_close(scores.proxy_logprobs, proxy.detach(), rtol=1e-12, atol=1e-12)
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


def test_min_p_keeps_equal_tokens_at_the_largest_share():
    hidden, weight = torch.ones(1, 1), torch.tensor([[3.0], [3.0], [1.0]])
    scores = score_tokens(hidden, weight, torch.tensor([1]), min_p=1.0)
    torch.testing.assert_close(scores.proxy_logprobs, torch.tensor([0.5]).log())


@pytest.mark.parametrize("rows", [2, 20, 200])
def test_min_p_of_one_keeps_the_largest_token_whatever_the_rounding(rows):
    torch.manual_seed(0)
    hidden, weight = 100 * torch.randn(rows, 256), torch.randn(4000, 256)
    targets = (hidden @ weight.T).argmax(-1)
    proxy = score_tokens(hidden, weight, targets, min_p=1.0, chunk_bytes=SMALL_TILE).proxy_logprobs
    torch.testing.assert_close(proxy, torch.zeros(rows), rtol=0, atol=1e-2)


# Gradients


GRADIENTS = {"logprobs": (1, 0), "entropy": (0, 1), "both": (1, 1)}


@pytest.mark.parametrize("wanted", GRADIENTS.values(), ids=GRADIENTS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_gradients_equal_plain_autograd(head, shape, wanted):
    hidden, weight, targets, bias = head
    incoming = torch.randn(2, ROWS, dtype=torch.float64)
    by_logprob, by_entropy = (x if on else None for x, on in zip(incoming, wanted, strict=True))

    def ours(hidden, weight, bias):
        scores = score_tokens(
            hidden, weight, targets, entropy=True, bias=bias, chunk_bytes=SMALL_TILE, **shape
        )
        return scores.logprobs, scores.entropy

    def reference(hidden, weight, bias):
        return plain(hidden, weight, targets, bias=bias, **shape)[:2]

    found = gradients(hidden, weight, bias, ours, by_logprob, by_entropy)
    expected = gradients(hidden, weight, bias, reference, by_logprob, by_entropy)
    for ours_, plain_ in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_, plain_, rtol=1e-11, atol=1e-11)


def test_gradient_of_logprobs_is_the_same_without_the_entropy(head):
    hidden, weight, targets, bias = head
    incoming = torch.randn(ROWS, dtype=torch.float64)

    def ours(hidden, weight, bias):
        return score_tokens(hidden, weight, targets, bias=bias).logprobs, None

    found = gradients(hidden, weight, bias, ours, incoming, None)
    expected = gradients(
        hidden, weight, bias, lambda h, w, b: plain(h, w, targets, bias=b)[:2], incoming, None
    )
    for ours_, plain_ in zip(found, expected, strict=True):
        torch.testing.assert_close(ours_, plain_, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradcheck(softcap):
    torch.manual_seed(0)
    inputs = leaves(*(torch.randn(*s, dtype=torch.float64) for s in [(3, 4), (130, 4), (130,)]))
    targets = torch.tensor([0, 129, 64])

    def function(hidden, weight, bias):
        scores = score_tokens(
            hidden,
            weight,
            targets,
            temperature=0.8,
            entropy=True,
            bias=bias,
            softcap=softcap,
            chunk_bytes=SMALL_TILE,
        )
        return scores.logprobs, scores.entropy

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)


def test_frozen_head_gets_no_gradient_and_the_hidden_states_the_same(head):
    hidden, weight, targets, _ = head
    (free,) = leaves(hidden)
    score_tokens(free, weight, targets).logprobs.sum().backward()
    assert weight.grad is None
    both, weight_ = leaves(hidden, weight)
    score_tokens(both, weight_, targets).logprobs.sum().backward()
    assert torch.equal(free.grad, both.grad)


def test_frozen_trunk_still_trains_the_head(head):
    hidden, weight, targets, _ = head
    (free,) = leaves(weight)
    score_tokens(hidden, free, targets).logprobs.sum().backward()
    (expected,) = leaves(weight)
    plain(hidden, expected, targets)[0].sum().backward()
    torch.testing.assert_close(free.grad, expected.grad)


@pytest.mark.parametrize("active", [[], [2, 5], list(range(ROWS))])
def test_rows_with_zero_gradient_leave_the_backward_products(head, active, monkeypatch):
    hidden, weight, targets, _ = head
    incoming = torch.zeros(ROWS, dtype=torch.float64)
    incoming[active] = 1.5
    seen = []
    sweep = tiles_module.backward_sweep
    monkeypatch.setattr(
        tiles_module,
        "backward_sweep",
        lambda *arguments: (seen.append(len(arguments[1])), sweep(*arguments)),
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


# Extremes, sizes, types


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_exact(dtype):
    logits = torch.randn(6, 300, dtype=torch.float64)
    logits[0] *= 1e4
    logits[1] += 1e4
    logits[2] -= 1e4
    logits[3, 7] = 1e4
    logits[4] = torch.linspace(-1e4, 1e4, 300)
    logits[5] = torch.linspace(1e4, -1e4, 300)
    logits = logits.to(dtype)
    targets = torch.tensor([3, 200, 250, 7, 0, 0])
    (rows,) = leaves(logits)
    everything = {"entropy": True, "collision": True, "sensitivity": True, "min_p": 0.02}
    scores = score_tokens(
        rows, torch.eye(300, dtype=dtype), targets, chunk_bytes=SMALL_TILE, **everything
    )
    (exact,) = leaves(logits.double())
    logprobs, entropy, _ = plain(exact, torch.eye(300, dtype=torch.float64), targets)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {}
    compare = {**tolerance, "check_dtype": False}
    torch.testing.assert_close(scores.logprobs, logprobs, **compare)
    torch.testing.assert_close(scores.entropy, entropy, **compare)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    (logprobs.sum() + entropy.sum()).backward()
    torch.testing.assert_close(rows.grad, exact.grad, **compare)
    for column in vars(scores).values():
        assert column.isfinite().all()


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_or_one_row_gives_a_graph(head, rows):
    hidden, weight, targets, bias = head
    hidden, weight, bias = leaves(hidden[:rows], weight, bias)
    scores = score_tokens(
        hidden,
        weight,
        targets[:rows],
        entropy=True,
        bias=bias,
        min_p=0.1,
        collision=True,
        sensitivity=True,
    )
    for column in vars(scores).values():
        assert column.shape == (rows,)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    expected, expected_weight, expected_bias = leaves(hidden, weight, bias)
    logprobs, entropy, _ = plain(expected, expected_weight, targets[:rows], bias=expected_bias)
    (logprobs.sum() + entropy.sum()).backward()
    torch.testing.assert_close(hidden.grad, expected.grad)
    torch.testing.assert_close(weight.grad, expected_weight.grad)
    torch.testing.assert_close(bias.grad, expected_bias.grad)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 9), vocabulary=st.integers(1, 700), columns=st.integers(128, 800))
def test_tiles_of_any_size_give_the_same_result(rows, vocabulary, columns):
    generator = torch.Generator().manual_seed(rows + vocabulary)
    hidden = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocabulary, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(vocabulary, (rows,), generator=generator)

    def run(chunk_bytes):
        free, free_weight = leaves(hidden, weight)
        scores = score_tokens(
            free,
            free_weight,
            targets,
            entropy=True,
            min_p=0.3,
            collision=True,
            sensitivity=True,
            chunk_bytes=chunk_bytes,
        )
        (scores.logprobs.sum() + scores.entropy.square().sum()).backward()
        return [*vars(scores).values(), free.grad, free_weight.grad]

    for tiled, whole in zip(run(columns * rows * 8), run(1 << 30), strict=True):
        torch.testing.assert_close(tiled, whole, rtol=1e-10, atol=1e-10)


def test_tile_columns_keep_to_the_budget_and_the_least_width():
    assert tile_columns(2048, 8 << 20) * 2048 * 4 == 8 << 20
    assert tile_columns(2048, 8 << 20, itemsize=8) == tile_columns(2048, 8 << 20) // 2
    assert tile_columns(1 << 30, 1) == 128
    assert tile_columns(0, 1 << 10) == 256


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_scored_to_float32_accuracy(dtype):
    torch.manual_seed(0)
    hidden = torch.randn(64, 256).to(dtype)
    weight = (torch.randn(5000, 256) / 4).to(dtype)
    targets = torch.randint(5000, (64,))
    free, free_weight = leaves(hidden, weight)
    scores = score_tokens(free, free_weight, targets, temperature=0.9, entropy=True)
    exact, exact_weight = leaves(hidden.double(), weight.double())
    logprobs, entropy, _ = plain(exact, exact_weight, targets, temperature=0.9)
    assert scores.logprobs.dtype == torch.float32
    assert (scores.logprobs - logprobs).abs().max() <= 1e-4
    assert (scores.entropy - entropy).abs().max() <= 1e-4
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    (logprobs.sum() + entropy.sum()).backward()
    assert (free.grad.dtype, free_weight.grad.dtype) == (dtype, dtype)
    rounding = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 1e-4}
    torch.testing.assert_close(free.grad.double(), exact.grad, **rounding)
    torch.testing.assert_close(free_weight.grad.double(), exact_weight.grad, **rounding)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_rounds_neither_scores_nor_gradients(head, dtype, with_bias):
    hidden, weight, bias = (x.to(dtype) for x in (head[0], head[1], head[3]))

    def run():
        free = leaves(hidden, weight, *([bias] if with_bias else []))
        options = {"bias": free[2]} if with_bias else {}
        scores = score_tokens(*free[:2], head[2], entropy=True, min_p=0.1, **options)
        (scores.logprobs.sum() + scores.entropy.sum()).backward()
        return [scores.logprobs, scores.entropy, scores.proxy_logprobs, *(x.grad for x in free)]

    expected = run()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run()
    assert all(map(torch.equal, found, expected))


def test_inputs_are_left_as_they_were(head):
    copies = [x.clone() for x in head]
    hidden, weight, targets, bias = head
    free, free_weight = leaves(hidden, weight)
    score_tokens(
        free, free_weight, targets, bias=bias, entropy=True, softcap=2.0
    ).entropy.sum().backward()
    for before, after in zip(copies, [free, free_weight, targets, bias], strict=True):
        assert torch.equal(before, after.detach())


@pytest.mark.slow
def test_peak_memory_holds_no_logits():
    """Forward and backward of 1024 x 100k: the logits alone would be 410 MB, as would each copy."""
    program = """
import resource, torch
from rlobj.scoring import score_tokens
torch.set_num_threads(1)
hidden = torch.randn(1024, 32, requires_grad=True)
weight = torch.randn(100_000, 32, requires_grad=True)
targets = torch.randint(100_000, (1024,))
def run(rows):
    scores = score_tokens(hidden[:rows], weight, targets[:rows], entropy=True, min_p=0.02,
                          collision=True, sensitivity=True)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
run(2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(1024)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 100  # MB


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
def test_what_cannot_mean_anything_is_refused(head, change, error, says):
    hidden, weight, targets, _ = head
    arguments = {"hidden": hidden, "weight": weight, "targets": targets, **change}
    with pytest.raises(error, match=says):
        score_tokens(**arguments)


# Models


SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
GPT2 = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
MODELS = {
    "qwen3-tied": ("Qwen3", {**SIZES, "tie_word_embeddings": True}),
    "qwen3-untied": ("Qwen3", {**SIZES, "tie_word_embeddings": False}),
    "llama": ("Llama", SIZES),
    "gpt2-tied": ("GPT2", GPT2),
    "gemma2-softcap": ("Gemma2", {**SIZES, "final_logit_softcapping": 0.5, "pad_token_id": 0}),
    "granite-scale": ("Granite", {**SIZES, "logits_scaling": 4.0}),
    "cohere-scale": ("Cohere", {k: v for k, v in SIZES.items() if k != "head_dim"}),
}
SEQUENCES = [
    ScoredSequence([5, 6, 7], [8, 9, 10, 11]),
    ([12], [13]),
    ([14, 15], []),
    ([20, 21, 22, 23, 24, 25], [26, 27]),
]


def tiny(name, dtype=torch.float32):
    transformers = pytest.importorskip("transformers")
    kind, sizes = MODELS[name] if isinstance(name, str) else name
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, name)(config).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.eval()


def plain_samples(model, temperature):
    """One sequence at a time, unpadded, through the model's own logits."""
    columns = []
    for prompt, response in SEQUENCES:
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / temperature
        logprobs = torch.log_softmax(logits[: len(response)], -1)
        targets = torch.tensor(response, dtype=torch.long)[:, None]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        columns.append(torch.stack([logprobs.gather(1, targets)[:, 0], entropy]))
    return torch.cat(columns, 1)


@pytest.mark.parametrize("name", MODELS)
def test_samples_and_every_gradient_equal_the_models_own_logits(name):
    model = tiny(name, torch.float64)
    weights = torch.randn(2, 7, dtype=torch.float64)
    expected = plain_samples(model, 0.8)
    (expected * weights).sum().backward()
    expected_gradients = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    scores = score_samples(model, SEQUENCES, temperature=0.8, entropy=True, min_p=0.1)
    found = torch.stack([scores.logprobs, scores.entropy])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert scores.proxy_logprobs.shape == (7,)
    (found * weights).sum().backward()
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad,
            expected_gradients[key],
            rtol=1e-5,
            atol=1e-6,
            msg=key,
        )


def test_scorer_makes_no_logits_for_prompt_tokens(monkeypatch):
    model = tiny("qwen3-tied")
    seen = []
    sweep = tiles_module.forward_sweep
    monkeypatch.setattr(
        tiles_module,
        "forward_sweep",
        lambda *a, **k: (seen.append(len(a[1])), sweep(*a, **k))[1],
    )
    scorer = PolicyScorer(model)
    model.lm_head.register_forward_hook(lambda *_: pytest.fail("the head made logits"))
    score_samples(scorer, SEQUENCES)
    assert seen == [7]


def test_samples_without_any_response_token_give_a_graph_to_every_parameter():
    model = tiny("qwen3-untied")
    scores = score_samples(model, [([1, 2], []), ([], [])], entropy=True)
    assert scores.logprobs.shape == (0,)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert not parameter.grad.any()


def test_scorer_keeps_training_mode_and_the_models_parameters():
    model = tiny("gpt2-tied").train()
    scorer = PolicyScorer(model)
    assert all(module.training for module in model.modules())
    assert {f"model.{name}" for name, _ in model.named_parameters()} == {
        name for name, _ in scorer.named_parameters()
    }


@pytest.mark.slow
def test_scorer_runs_wrapped_in_data_parallel():
    """In a process of its own that leaves without tearing its threads down, which can deadlock."""
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
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
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


def test_bfloat16_model_passes_its_own_check():
    scores = score_samples(tiny("gemma2-softcap", torch.bfloat16), SEQUENCES)
    assert scores.logprobs.dtype == torch.float32


def test_unknown_treatment_of_the_logits_is_refused_by_name():
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


def test_multiplied_logits_scaling_is_never_read_as_division():
    model = ("HyperCLOVAX", {**SIZES, "logits_scaling": 4.0})
    with pytest.raises(ConfigError, match=r"logits_scaling=4\.0"):
        PolicyScorer(tiny(model))


def test_head_that_is_not_linear_is_refused():
    model = tiny("llama")
    model.lm_head = nn.Sequential(model.lm_head)
    with pytest.raises(ConfigError, match="head of LlamaForCausalLM is a Sequential"):
        PolicyScorer(model)


def test_response_without_a_prompt_is_refused():
    with pytest.raises(BatchError, match="sequence 1 has an empty prompt"):
        pad_sequences([([1], [2]), ([], [3])])


def test_no_sequences_give_no_scores_but_a_graph_through_all_parameters():
    model = tiny("llama")
    scores = score_samples(model, [], entropy=True)
    assert scores.logprobs.shape == scores.entropy.shape == (0,)
    (scores.logprobs.sum() * 0).backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or p.grad.any()] == []


def test_padded_sequences_by_hand():
    input_ids, attention_mask, response_mask = pad_sequences([([1, 2], [3]), ([4], []), ([], [])])
    assert input_ids.tolist() == [[1, 2, 3], [4, 0, 0], [0, 0, 0]]
    assert attention_mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    assert response_mask.tolist() == [[False, False, True], [False] * 3, [False] * 3]


# Micro-batches


@given(lengths=st.lists(st.integers(0, 60), max_size=40), budget=st.integers(1, 200))
def test_micro_batches_hold_every_index_once_within_the_budget(lengths, budget):
    batches = micro_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= budget
    assert batches == micro_batches(list(lengths), budget)


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), budget=st.integers(5, 30))
def test_no_packing_has_fewer_micro_batches(lengths, budget):
    def fits(batch):
        return len(batch) == 1 or len(batch) * max(batch) <= budget

    def partitions(items):
        if not items:
            yield []
            return
        first, rest = items[0], items[1:]
        for smaller in partitions(rest):
            yield [[first], *smaller]
            for place, batch in enumerate(smaller):
                yield [*smaller[:place], [first, *batch], *smaller[place + 1 :]]

    fewest = min(len(p) for p in partitions(lengths) if all(map(fits, p)))
    assert len(micro_batches(lengths, budget)) == fewest


def test_micro_batches_of_spread_lengths_are_nearly_all_useful():
    torch.manual_seed(0)
    lengths = (400 * torch.exp(0.8 * torch.randn(512))).long().clamp(8, 8192).tolist()
    batches = micro_batches(lengths, 16384)
    padded = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    assert sum(lengths) / padded > 0.9


def test_micro_batch_budget_below_one_is_refused():
    with pytest.raises(ConfigError, match="budget_tokens is 0"):
        micro_batches([1], 0)
    with pytest.raises(BatchError, match="-3"):
        micro_batches([1, -3], 5)
