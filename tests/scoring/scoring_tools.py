"""Shared by the tests of rlobj.scoring: a head, and the plain computation with all logits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from rlobj.scoring import FILTERED, score_samples, score_tokens, tiles, token_scores

ROWS, WIDTH, VOCABULARY = 13, 8, 301
SMALL_TILE = 1  # bytes: tiles of the least width, 128 columns, so 301 takes three

SHAPES = {
    "bare": {},
    "temperature": {"temperature": 0.7},
    "scale": {"scale": -0.3, "temperature": 1.3},
    "softcap": {"softcap": 2.0},
    "softcap-scale-temperature": {"softcap": 1.5, "scale": 0.5, "temperature": 0.6},
}


def make_head():
    """hidden, weight, targets, bias in float64."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    targets = torch.randint(VOCABULARY, (ROWS,), generator=generator)
    targets[:4] = torch.tensor([0, 127, 128, VOCABULARY - 1])  # the edges of the tiles
    return normal(ROWS, WIDTH), normal(VOCABULARY, WIDTH), targets, normal(VOCABULARY)


def plain(hidden, weight, targets, *, temperature=1.0, bias=None, scale=1.0, softcap=None):
    """Log-probs of the targets, entropy and all log-probs, computed from all logits."""
    logits = (hidden @ weight.T + (0 if bias is None else bias)) * scale
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    logprobs = torch.log_softmax(logits / temperature, -1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy, logprobs


def plain_proxy(logprobs, targets, min_p, filtered, relative=True):
    """The log-probs of the min-p proxy, computed from all log-probs."""
    probs = logprobs.exp()
    kept = probs >= min_p * (probs.amax(-1, keepdim=True) if relative else 1)
    proxy = torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), -1)
    proxy = proxy.gather(1, targets[:, None])[:, 0]
    return torch.where(proxy.isfinite(), proxy, filtered).detach()


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


EVERYTHING = {"entropy": True, "collision": True, "sensitivity": True}
"""All columns but the proxy, which needs a `min_p`."""


def against_plain(inputs, targets, *, chunk_bytes=SMALL_TILE, columns=None, **shape):
    """The scores, and pairs to compare: log-probs, entropy and the gradients of their sum.

    `inputs` are hidden, weight and maybe bias; the plain computation is in float64.
    """
    free, exact = leaves(*inputs), leaves(*(x.double() for x in inputs))
    names = ("hidden", "weight", "bias")
    given, wide = (dict(zip(names, part, strict=False)) for part in (free, exact))
    columns = {"entropy": True, **(columns or {})}
    scores = score_tokens(**given, targets=targets, chunk_bytes=chunk_bytes, **columns, **shape)
    logprobs, entropy, everything = plain(**wide, targets=targets, **shape)
    (scores.logprobs.sum() + scores.entropy.sum()).backward()
    (logprobs.sum() + entropy.sum()).backward()
    pairs = [(scores.logprobs, logprobs), (scores.entropy, entropy)]
    if "min_p" in columns:
        proxy = plain_proxy(everything, targets, columns["min_p"], FILTERED)
        pairs.append((scores.proxy_logprobs, proxy))
    return scores, pairs, [(x.grad, y.grad) for x, y in zip(free, exact, strict=True)]


def assert_close(pairs, **tolerance):
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, check_dtype=False, **tolerance)


def half_operands(monkeypatch):
    """Emulates half-precision products with float32 sums, which only a GPU has, in float32."""

    def multiply(left, right, out):
        return out.copy_(left.float() @ right.float())

    def accumulate(into, left, right, alpha=1.0):
        return into.add_(left.float() @ right.float(), alpha=alpha)

    monkeypatch.setattr(tiles, "multiply", multiply)
    monkeypatch.setattr(tiles, "accumulate", accumulate)
    monkeypatch.setattr(token_scores, "_operand", lambda hidden, weight, dtype: hidden.dtype)


WANTED = {"logprobs": (1, 0), "entropy": (0, 1), "both": (1, 1)}
"""By which columns `check_gradients` differentiates."""


def check_gradients(head, wanted, tolerance, *, entropy=True, **shape):
    """The gradients of score_tokens equal those of the plain computation."""
    *inputs, bias = head[0], head[1], head[3]
    incoming = torch.randn(2, len(head[2]), dtype=bias.dtype)
    found, expected = leaves(*inputs, bias), leaves(*inputs, bias)
    options = {"entropy": entropy, "chunk_bytes": SMALL_TILE, **shape}
    scores = score_tokens(*found[:2], head[2], bias=found[2], **options)
    for columns in (
        (scores.logprobs, scores.entropy),
        plain(*expected[:2], head[2], bias=expected[2], **shape)[:2],
    ):
        chosen = [(x * by).sum() for x, by, on in zip(columns, incoming, wanted, strict=True) if on]
        sum(chosen).backward()
    assert_close([(x.grad, y.grad) for x, y in zip(found, expected, strict=True)], **tolerance)


def check_half_precision(dtype, chunk_bytes, columns, **shape):
    """Half-precision products give float32 scores and rounded gradients."""
    torch.manual_seed(0)
    inputs = torch.randn(9, 64).to(dtype), (torch.randn(301, 64) / 2).to(dtype)
    settings = {"chunk_bytes": chunk_bytes, "columns": columns, **shape}
    scores, values, slopes = against_plain(inputs, torch.randint(301, (9,)), **settings)
    assert scores.logprobs.dtype == torch.float32
    assert_close(values, rtol=0, atol=1e-4)
    for found, expected in slopes:
        assert (found.double() - expected).norm() / expected.norm() < torch.finfo(dtype).eps


def extreme_logits():
    """Six rows of 300 logits up to 10,000, and targets."""
    logits = torch.randn(6, 300, dtype=torch.float64)
    logits[0] *= 1e4
    logits[1] += 1e4
    logits[2] -= 1e4
    logits[3, 7] = 1e4
    logits[4] = torch.linspace(-1e4, 1e4, 300)
    logits[5] = torch.linspace(1e4, -1e4, 300)
    return logits, torch.tensor([3, 200, 250, 7, 0, 0])


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
    ([5, 6, 7], [8, 9, 10, 11]),
    ([12], [13]),
    ([14, 15], []),
    ([20, 21, 22, 23, 24, 25], [26, 27]),
]


def tiny(name, dtype=torch.float32):
    transformers = pytest.importorskip("transformers")
    kind, sizes = MODELS[name] if isinstance(name, str) else name
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind.removesuffix('Text')}ForCausalLM"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = getattr(transformers, name)(config).to(dtype)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.eval()


def plain_samples(model, temperature):
    """Log-probs and entropies from the model's logits, one sequence at a time."""
    columns = []
    for prompt, response in SEQUENCES:
        ids = torch.tensor([[*prompt, *response]])
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1] / temperature
        logprobs = torch.log_softmax(logits[: len(response)], -1)
        targets = torch.tensor(response, dtype=torch.long)[:, None]
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        columns.append(torch.stack([logprobs.gather(1, targets)[:, 0], entropy]))
    return torch.cat(columns, 1)


def check_samples(model):
    """Scores and gradients are those of the logits; gives the scores, and the gradients by name."""
    weights = torch.randn(2, 7, dtype=torch.float64)
    expected = plain_samples(model, 0.8)
    (expected * weights).sum().backward()
    wanted = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    scores = score_samples(model, SEQUENCES, temperature=0.8, entropy=True, min_p=0.1)
    found = torch.stack([scores.logprobs, scores.entropy])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    (found * weights).sum().backward()
    for key, parameter in model.named_parameters():
        if key not in wanted:
            assert parameter.grad is None, key  # no gradient for a frozen head
        else:
            torch.testing.assert_close(parameter.grad, wanted[key], rtol=1e-5, atol=1e-6, msg=key)
    return scores, wanted
