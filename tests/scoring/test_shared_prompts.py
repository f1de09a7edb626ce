"""Prompts that go through the model once: the same scores and gradients as whole rows."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring_tools import MODELS, SIZES, tiny

from rlobj.base.errors import BatchError, ConfigError
from rlobj.base.interleaved import Interleaved
from rlobj.scoring import PolicyScorer
from rlobj.scoring.cutting import Rows
from rlobj.scoring.packing import share_prompts

LONG, SHORT, ONE = list(range(5, 17)), [20, 21, 22], [30]
GROUPS = {
    "uneven groups": [(LONG, [8, 9]), (SHORT, [7]), (LONG, [4, 5, 6, 9]), (ONE, [5, 6])],
    "prompts of one token": [(ONE, [5, 6]), ([31], [7]), (ONE, [8])],
    "prompts longer than responses": [(LONG, [n]) for n in range(40, 44)],
    "responses longer than prompts": [(ONE, list(range(n, 60))) for n in (40, 45, 50)],
    "empty responses": [(SHORT, []), (SHORT, [9, 8, 7]), (LONG, []), ([], [])],
    "empty responses alone": [(SHORT, []), ([], [])],
    "no sequences": [],
    "conversations": [
        (SHORT, Interleaved([5, 6, 7], [(2, [1, 2, 3])])),
        (SHORT, Interleaved([8, 9], [])),
        (LONG, Interleaved([8, 9], [(0, [4]), (1, [3])])),
    ],
}
SLIDING = {**SIZES, "sliding_window": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
WINDOWS = {
    "mistral-window": ("Mistral", SLIDING),
    "gemma2-window": ("Gemma2", SLIDING),
    "gemma3-window": ("Gemma3Text", SLIDING),
}


def in_float64(name):
    """A tiny model whose norms compute in float64, too; transformers' compute in float32."""

    def normalised(self, hidden):
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
        return hidden * scale * (self.weight + type(self).__name__.startswith("Gemma"))

    model = tiny(MODELS.get(name) or WINDOWS[name], torch.float64)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = normalised.__get__(module)
    return model


def scored(scorer, sequences, shared):
    """Log-probs, entropies, and the gradient of a sum of both over all parameters."""
    scorer.zero_grad()
    scores = scorer(*scorer.collate(sequences, shared=shared), entropy=True, temperature=0.8)
    weights = torch.linspace(1, 2, len(scores.logprobs), dtype=torch.float64)
    ((scores.logprobs + 0.3 * scores.entropy) * weights).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in scorer.parameters()])
    return scores.logprobs.detach(), scores.entropy.detach(), gradient


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("name", ["qwen3-tied", "gpt2-tied", "gemma2-softcap"])
def test_shared_prompts_give_the_scores_and_gradients_of_whole_rows_in_float64(name, case):
    scorer = PolicyScorer(in_float64(name))
    assert scorer.unshareable is None
    whole, shared = (scored(scorer, GROUPS[case], how) for how in (False, True))
    for ours, theirs in zip(shared, whole, strict=True):
        assert ours.shape == theirs.shape
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*MODELS, *WINDOWS])
def test_every_architecture_with_keys_and_values_shares_prompts(name):
    scorer = PolicyScorer(in_float64(name))
    assert scorer.unshareable is None
    sequences = [*GROUPS["uneven groups"], (LONG, list(range(40, 52)))]
    whole, shared = (scored(scorer, sequences, how) for how in (False, True))
    tolerance = 1e-7 if name == "cohere-scale" else 1e-12  # its norm computes in float32
    for ours, theirs in zip(shared, whole, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "sizes", "reason"),
    [
        ("Mamba", {"state_size": 4}, "layers of the kind linear_attention have a state"),
        (
            "Llama4Text",
            {"num_local_experts": 2},
            "its output depends on a token's place in the row",
        ),
        ("Lfm2", {"layer_types": ["conv", "full_attention"]}, "layers of the kind conv"),
        (
            "Llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "its output depends on a token's place in the row",
        ),
    ],
)
def test_other_architectures_say_why_they_keep_whole_rows(kind, sizes, reason):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scorer = PolicyScorer(tiny((kind, {**SIZES, **sizes})))
    assert reason in scorer.unshareable


def test_a_cache_that_loses_keys_is_found_when_the_scorer_is_built(monkeypatch):
    from transformers import DynamicCache

    def forget(self, indices):
        for layer in self.layers:
            layer.keys = torch.zeros_like(layer.keys)[indices]
            layer.values = layer.values[indices]

    monkeypatch.setattr(DynamicCache, "batch_select_indices", forget)
    assert "hidden states differ by" in PolicyScorer(tiny("llama")).unshareable


def test_a_trial_that_ends_with_an_error_keeps_whole_rows(monkeypatch):
    """As that of XLM, whose masks are only as long as the tokens of a pass."""
    monkeypatch.setattr(PolicyScorer, "_after_prompts", lambda *_: {}["mask"])
    assert (
        PolicyScorer(tiny("llama")).unshareable == "two short prompts ended with KeyError: 'mask'"
    )


def test_recomputation_which_keeps_no_keys_is_an_error_and_not_a_wrong_score():
    model = tiny("llama").train()
    scorer = PolicyScorer(model)
    model.gradient_checkpointing_enable()
    with pytest.raises(ConfigError, match="kept no keys and values"):
        scorer(*scorer.collate(GROUPS["uneven groups"], shared=True))


def test_shared_inputs_equal_values_by_hand():
    sequences = [([1, 2], [3, 4, 5]), ([7], [8]), ([1, 2], []), ([1, 2], [6, 7])]
    ids, _, mask, _, prompts, prompt_mask, owners = share_prompts(sequences)
    assert ids.tolist() == [[3, 4, 5], [8, 0, 0], [0, 0, 0], [6, 7, 0]]
    assert mask.sum(1).tolist() == [3, 1, 0, 2]
    assert prompts.tolist() == [[1, 2], [0, 7]]
    assert prompt_mask.tolist() == [[1, 1], [0, 1]]
    assert owners.tolist() == [0, 1, 0, 0]
    assert share_prompts(sequences[:1] * 2)[5] is None
    with pytest.raises(BatchError, match="sequence 1 has an empty prompt"):
        share_prompts([([1], [2]), ([], [3])])


def test_a_group_counts_its_prompt_once_and_no_last_tokens():
    groups = Rows.with_shared_prompts([(LONG, [1, 2, 3])] * 4 + [(SHORT, [1])])
    assert groups.tokens(range(5)) == 12 + 4 * 2 + 3
    assert groups.tokens([0, 1]) == 12 + 2 * 2
    assert groups.cost([0, 1]) == 12 + 2 * (2 + 12 / 8)
    assert groups.cost([0, 4]) == 2 * 12 + 2 * (2 + 12 / 8)
    assert groups.memory([0, 4]) == 2 * 12 + 2 * (2 + 12 / 4)


responses = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30)), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
@given(rows=responses, budget=st.integers(20, 300))
def test_micro_batches_hold_each_sequence_once_within_the_budget(rows, budget):
    groups = Rows.with_shared_prompts(
        [([prompt] * (3 * prompt + 1), [5] * size) for prompt, size in rows]
    )
    parts = groups.cheapest(budget)
    assert sorted(itertools.chain(*parts)) == list(range(len(rows)))
    assert all(len(part) == 1 or groups.memory(part) <= budget for part in parts)


@settings(max_examples=30, deadline=None)
@given(rows=responses, budget=st.integers(40, 300))
def test_no_cut_of_the_sequences_by_groups_is_cheaper(rows, budget):
    """Against all cuts of the order by groups, the longest first."""
    groups = Rows.with_shared_prompts(
        [([prompt] * (3 * prompt + 1), [5] * size) for prompt, size in rows]
    )
    once = min(256, budget / 16) + min(32, budget / 16)

    def cost(parts):
        return sum(map(groups.cost, parts)) + once * len(parts)

    widest = dict.fromkeys(groups.owners, 0)
    for owner, (_, size) in zip(groups.owners, rows, strict=True):
        widest[owner] = max(widest[owner], size)
    order = sorted(
        range(len(rows)), key=lambda i: (-widest[groups.owners[i]], groups.owners[i], -rows[i][1])
    )
    best = float("inf")
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        ends = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(order)]
        parts = [order[a:b] for a, b in itertools.pairwise(ends)]
        if all(len(part) == 1 or groups.memory(part) <= budget for part in parts):
            best = min(best, cost(parts))
    assert cost(groups.cheapest(budget)) <= best + 1e-9
