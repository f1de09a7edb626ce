"""LoRA on the head: scores equal peft's logits."""

import subprocess
import sys
import warnings

import pytest
import torch
from scoring_tools import SEQUENCES, leaves, make_head, plain, plain_samples, tiny

from rlobj.base.errors import BatchError, ConfigError
from rlobj.scoring import PolicyScorer, score_samples, score_tokens

peft = pytest.importorskip("peft")

TARGETS = {"head": ["lm_head"], "head-and-trunk": ["lm_head", "q_proj", "down_proj"]}


def adapted(name="qwen3-untied", targets=("lm_head",), **options):
    """A tiny model in float64 with adapters whose B is not zero."""
    settings = {"r": 3, "lora_alpha": 12, "target_modules": list(targets), "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(**settings, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft has something to say of tied heads and of biases
        model = peft.get_peft_model(tiny(name, torch.float64), config, autocast_adapter_dtype=False)
    for key, parameter in model.named_parameters():
        if ".lora_" in key:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.double()


@pytest.mark.parametrize("name", ["qwen3-untied", "gemma2-softcap", "granite-scale"])
@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
def test_scores_and_gradients_equal_those_of_peft(name, targets):
    model = adapted(name, targets)
    expected = plain_samples(model, 0.8)
    weights = torch.randn(2, 7, dtype=torch.float64)
    (expected * weights).sum().backward()
    wanted = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
    assert len(wanted) >= 2
    model.zero_grad(set_to_none=True)
    scores = score_samples(model, SEQUENCES, temperature=0.8, entropy=True)
    found = torch.stack([scores.logprobs, scores.entropy])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    (found * weights).sum().backward()
    for key, parameter in model.named_parameters():
        if key not in wanted:
            assert parameter.grad is None, key  # no gradient for a frozen head
        else:
            torch.testing.assert_close(parameter.grad, wanted[key], rtol=1e-5, atol=1e-6)


def test_a_model_with_disabled_adapters_scores_like_its_base_model():
    model = adapted()
    scorer = PolicyScorer(model)
    with model.disable_adapter():
        found = score_samples(scorer, SEQUENCES).logprobs
        expected = plain_samples(model, 1.0)[0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert (score_samples(scorer, SEQUENCES).logprobs - expected).abs().max() > 0.1


def test_merged_adapters_are_not_added_twice():
    model = adapted()
    expected = score_samples(model, SEQUENCES).logprobs
    model.merge_adapter()
    torch.testing.assert_close(score_samples(model, SEQUENCES).logprobs, expected)


def test_several_active_adapters_add_up():
    model = adapted()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["lm_head"]))
    model.base_model.set_adapter(["default", "other"])
    for key, parameter in model.named_parameters():
        if ".other." in key:
            torch.nn.init.normal_(parameter, std=0.3)
    model.double()
    expected = plain_samples(model, 1.0)[0]
    found = score_samples(model, SEQUENCES).logprobs
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_a_head_that_peft_trains_as_a_copy_is_scored():
    model = adapted(targets=["q_proj"], modules_to_save=["lm_head"])
    head = model.get_output_embeddings().modules_to_save["default"]
    torch.nn.init.normal_(head.weight, std=0.2)
    expected = plain_samples(model, 1.0)[0]
    found = score_samples(model, SEQUENCES).logprobs
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    found.sum().backward()
    assert head.weight.grad.any()
    with model.disable_adapter():
        below = score_samples(model, SEQUENCES).logprobs
    assert (below - expected).abs().max() > 0.1


def test_dropout_of_a_resumed_adapter_does_not_affect_the_check():
    model = adapted(lora_dropout=0.5).train()
    PolicyScorer(model)
    assert model.get_output_embeddings().training


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}])
def test_variants_of_lora_on_the_head_are_refused(options):
    with pytest.raises(ConfigError, match="adapter 'default' on the head"):
        PolicyScorer(adapted(**options))


def test_other_adapters_on_the_head_are_refused():
    model = peft.get_peft_model(
        tiny("llama"), peft.IA3Config(target_modules=["lm_head"], feedforward_modules=[])
    )
    with pytest.raises(ConfigError, match="of peft's adapters, scoring knows LoRA"):
        PolicyScorer(model)


# Without a model: the low-rank correction of `score_tokens`.


@pytest.mark.parametrize("chunk_bytes", [1, None])
def test_low_rank_equals_the_corrected_weight(chunk_bytes):
    hidden, weight, targets, bias = make_head()
    low = torch.randn(3, hidden.shape[1], dtype=torch.float64)
    high = torch.randn(len(weight), 3, dtype=torch.float64)
    options = {"temperature": 0.7, "softcap": 2.0, "bias": bias}
    results = []
    for corrected in (False, True):
        free = leaves(hidden, low, high)
        if corrected:
            scores = score_tokens(
                free[0],
                weight,
                targets,
                entropy=True,
                low_rank=(free[0] @ free[1].T, free[2]),
                chunk_bytes=chunk_bytes,
                **options,
            )
            columns = (scores.logprobs, scores.entropy)
        else:
            columns = plain(free[0], weight + free[2] @ free[1], targets, **options)[:2]
        (columns[0].sum() + columns[1].square().sum()).backward()
        results.append([*columns, *(x.grad for x in free)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("low", "high"), [((13, 2), (301, 3)), ((12, 2), (301, 2)), ((13, 2), (300, 2))]
)
def test_low_rank_of_another_shape_is_refused(low, high):
    hidden, weight, targets, _ = make_head()
    with pytest.raises(BatchError, match="low_rank has shapes"):
        score_tokens(hidden, weight, targets, low_rank=(torch.zeros(low), torch.zeros(high)))


@pytest.mark.slow
def test_adapters_on_the_head_train_in_data_parallel():
    """Runs in another process that exits without joining its threads, which could deadlock."""
    program = """
import os
import torch
from torch import distributed, nn
from test_policy_scorer_lora import adapted
from scoring_tools import SEQUENCES
from rlobj.scoring import PolicyScorer, score_samples
torch.set_num_threads(1)
model = adapted()
expected = score_samples(model, SEQUENCES)
expected.logprobs.sum().backward()
trained = [p for p in model.parameters() if p.requires_grad]
gradients = [p.grad for p in trained]
model.zero_grad()
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(PolicyScorer(model))
score_samples(wrapped, SEQUENCES).logprobs.sum().backward()
for parameter, gradient in zip(trained, gradients, strict=True):
    torch.testing.assert_close(parameter.grad, gradient)
print("equal", flush=True)
os._exit(0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        cwd=__file__.rpartition("/")[0],
    )
    assert done.stdout == "equal\n", done.stderr
