"""Shared by the tests of rlobj.scoring: a head, and the plain computation with all logits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from rlobj.scoring import tiles, token_scores

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


def half_operands(monkeypatch):
    """Emulates half-precision products with float32 sums, which only a GPU has, in float32."""

    def multiply(left, right, out):
        return out.copy_(left.float() @ right.float())

    def accumulate(into, left, right, alpha=1.0):
        return into.add_(left.float() @ right.float(), alpha=alpha)

    monkeypatch.setattr(tiles, "multiply", multiply)
    monkeypatch.setattr(tiles, "accumulate", accumulate)
    monkeypatch.setattr(token_scores, "_operand", lambda hidden, weight, dtype: hidden.dtype)


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
    name = {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
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
