"""vLLM in this process, with real engines: log-probs, seeds, syncs and their faults."""

from __future__ import annotations

import gc
import os
import random
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from benchmarks.embedded_policy import build_tokenizer
from forked import TEST_MODULES, WITH_VLLM, run_ranks
from vllm_tools import (
    NEEDS_VLLM,
    TOLERANCE,
    InFlight,
    check_conversations,
    check_long_prompts,
    check_rollouts,
    check_syncs_in_flight,
    draw,
    gap,
    jitter,
    named,
    prompts,
    push,
    save_policy,
)

from rlobj.base.errors import ConfigError, RunError
from rlobj.samplers import SamplingSettings
from rlobj.samplers.transformers import truncate
from rlobj.samplers.vllm import VllmSampler, VllmSettings

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(**NEEDS_VLLM)]


_FROZEN = gc.get_freeze_count()
"""Objects that Python itself froze: some hundred in 3.12."""


def process_state() -> dict[str, Any]:
    """The process state that vLLM is known to change."""
    return {
        "torch": torch.random.get_rng_state().tolist(),
        "numpy": str(numpy.random.get_state()),  # noqa: NPY002
        "python": random.getstate(),
        "environment": dict(os.environ),
        "dtype": torch.get_default_dtype(),
        "threads": (torch.get_num_threads(), torch.set_num_threads),
        "frozen": gc.get_freeze_count() > _FROZEN,
    }


class Engines:
    """The engine of this module, at most one at a time, and its model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.name = ""
        self.built: tuple[Any, VllmSampler] | None = None
        self.changed: list[str] = []

    def get(self, name: str) -> tuple[Any, VllmSampler]:
        if self.built is None or self.name != name:
            self.close()
            self.name, self.built = name, self._build(name)
        return self.built

    def close(self) -> None:
        if self.built is not None:
            self.built[1].close()
            self.built[1].close()
        self.built = None

    def _build(self, name: str) -> tuple[Any, VllmSampler]:
        folder, tokenizer = self.folder / name, build_tokenizer()
        model = save_policy(folder, tied=name == "tied")
        before = process_state()
        sampler = VllmSampler(
            str(folder),
            tokenizer,
            eos=[tokenizer.eos_token_id],
            settings=VllmSettings(kv_cache_bytes=64 << 20),
            dtype=torch.float32,
        )
        after = process_state()
        self.changed += [what for what in before if before[what] != after[what]]
        return model, sampler


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    found = Engines(tmp_path_factory.mktemp("models"))
    yield found
    found.close()


@pytest.fixture
def tied(engines):
    """Model and engine with the same weights, also after tests that change them."""
    model, sampler = engines.get("tied")
    push(sampler, model, 100)
    return model, sampler


@pytest.mark.parametrize("name", [pytest.param("untied", marks=pytest.mark.slow), "tied"])
def test_logprobs_equal_the_trainers_before_and_after_weight_changes(engines, name):
    model, sampler = engines.get(name)
    assert sampler.received().version == -1
    samples = draw(sampler, max_tokens=5)
    assert gap(model, samples) < TOLERANCE
    assert {sample.weight_version for sample in samples} == {0}
    for version in (1, 2, 3):
        jitter(model, seed=version)
        assert gap(model, draw(sampler, max_tokens=5)) > 0.01  # still the old weights
        push(sampler, model, version)
        samples = draw(sampler, max_tokens=5)
        assert gap(model, samples) < TOLERANCE
        assert {sample.weight_version for sample in samples} == {version}


def test_building_sampling_and_syncing_restore_the_process_state(engines, tied):
    model, sampler = tied
    assert engines.changed == []  # while an engine was built
    before = process_state()
    draw(sampler)
    push(sampler, model, 101)
    sampler.sleep()
    after = process_state()
    assert [what for what in before if before[what] != after[what]] == []


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.7}, {"min_p": 0.3}, {"temperature": 0.8, "top_k": 5, "top_p": 0.7}],
    ids=str,
)
def test_logprobs_are_those_of_the_sampled_distribution(tied, settings):
    model, sampler = tied
    asked = SamplingSettings(max_tokens=12, **settings)
    cut = 0
    for sample in draw(sampler, **settings):
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1]
        scores = truncate(logits, asked)
        expected = scores.log_softmax(-1).gather(-1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert torch.allclose(torch.tensor(sample.logprobs), expected, atol=TOLERANCE)
        cut += int(scores.isinf().sum())
    assert (cut > 0) == (settings.keys() != {"temperature"})


def test_greedy_takes_the_most_likely_token_with_logprob_zero(tied):
    model, sampler = tied
    samples = draw(sampler, temperature=0)
    assert len(samples) == 4 * len(prompts())
    for sample in samples:
        assert sample.logprobs == array("f", [0.0] * len(sample.tokens))
        ids = torch.tensor([[*sample.prompt, *sample.tokens]])
        with torch.no_grad():
            best = model(input_ids=ids).logits[0, len(sample.prompt) - 1 : -1].argmax(-1)
        assert best.tolist() == sample.tokens.tolist()


def test_responses_depend_only_on_prompt_and_seed(tied):
    _, sampler = tied
    ids, asked = prompts(), SamplingSettings(max_tokens=12)
    seeds = [7 + index for index in range(len(ids))]

    def tokens(order: list[int], count: int) -> dict[int, list[list[int]]]:
        found = sampler.sample(
            [ids[index] for index in order],
            count=count,
            settings=asked,
            seeds=[seeds[index] for index in order],
        )
        return {
            index: [sample.tokens.tolist() for sample in samples]
            for index, samples in zip(order, found, strict=True)
        }

    together = tokens(list(range(len(ids))), 4)
    assert tokens(list(range(len(ids)))[::-1], 4) == together
    assert tokens([5], 4)[5] == together[5]
    assert tokens([5], 2)[5] == together[5][:2]


@pytest.mark.slow
def test_the_engine_samples_on_after_an_error_in_the_middle(tied):
    _, sampler = tied
    expected = draw(sampler, max_tokens=40)

    def fail(index: int, samples: list[Any]) -> None:
        raise KeyboardInterrupt

    settings = SamplingSettings(max_tokens=40)
    before = process_state()
    with pytest.raises(KeyboardInterrupt):
        sampler.sample(prompts(), count=4, settings=settings, seeds=range(12), done=fail)
    assert process_state() == before
    assert draw(sampler, max_tokens=40) == expected


@pytest.mark.slow
def test_conversations_go_on_by_themselves_and_are_scored_as_they_were_drawn(tied):
    model, sampler = tied
    check_conversations(sampler, model)


@pytest.mark.slow
def test_rows_of_rollouts_are_scored_as_they_were_drawn_and_come_again(tied):
    model, sampler = tied
    check_rollouts(sampler, model)


def test_long_prompts_are_drawn_together_as_they_are_alone(tied):
    model, sampler = tied
    check_long_prompts(sampler, model)


def test_a_stop_string_or_the_eos_token_ends_a_response_and_is_kept(tied):
    model, sampler = tied
    samples = draw(sampler, stop=("5", "+1"), max_tokens=20, temperature=2.0)
    texts = {id(each): build_tokenizer().decode(each.tokens) for each in samples}  # with <bos>
    eos = build_tokenizer().eos_token_id
    stopped = [each for each in samples if each.finish == "stop" and each.tokens[-1] != eos]
    assert 0 < len(stopped) < sum(each.finish == "stop" for each in samples)
    assert not [each for each in samples if eos in each.tokens[:-1]]
    for sample in stopped:
        assert texts[id(sample)].endswith(("5", "+1"))
        assert sample.text.endswith(("5", "1"))
    assert not [text for text in texts.values() if "5" in text[:-1] or "+1" in text[:-2]]
    assert gap(model, samples, temperature=2.0) < TOLERANCE


def test_a_sync_clears_the_prefix_cache(tied, monkeypatch):
    model, sampler = tied
    ids = [prompts(10)[index] * 70 for index in range(3)]  # longer than a cached block
    draw(sampler, ids)
    jitter(model, seed=11)
    with monkeypatch.context() as patch:
        patch.setattr(sampler._engine, "reset_prefix_cache", lambda *_: True)
        push(sampler, model, 111)
        assert gap(model, draw(sampler, ids)) > 0.01  # with the cache
    push(sampler, model, 112)
    assert gap(model, draw(sampler, ids)) < TOLERANCE


def test_a_sync_reaches_responses_that_are_being_drawn(tied, monkeypatch):
    model, sampler = tied
    monkeypatch.setattr(sampler, "_eos", [])
    drawing = InFlight(sampler, model)
    drawing.ask(8, longest=200)
    while not sampler._boxes:
        time.sleep(0.01)
    drawing.sync(101)
    drawing.end()
    assert {each.weight_version for each in drawing.responses} == {101}
    assert max(drawing.gaps()) < TOLERANCE


@pytest.mark.slow
@pytest.mark.parametrize("name", ["untied", "tied"])
def test_responses_that_cross_syncs_have_the_log_probs_of_their_tokens_versions(
    engines, monkeypatch, name
):
    model, sampler = engines.get(name)
    monkeypatch.setattr(sampler, "_eos", [])
    check_syncs_in_flight(sampler, model)


@pytest.mark.slow
def test_nothing_grows_over_500_syncs_in_flight(tied, monkeypatch):
    model, sampler = tied
    monkeypatch.setattr(sampler, "_eos", [])
    drawing, weights = InFlight(sampler, model), named(model)
    engine = sampler._engine.llm_engine
    sizes = []
    for version in range(101, 601):
        drawing.ask(4, longest=20)
        sampler.sync(iter(weights), version)
        while len(drawing.responses) < 4 * (version - 102):
            time.sleep(0.001)
        sizes.append((len(sampler._boxes), engine.get_num_unfinished_requests()))
    drawing.end()
    assert max(map(max, sizes)) <= 8
    assert sampler._boxes == {}
    assert len(drawing.responses) == 2000
    assert drawing.responses[-1].weight_version >= 599


def test_a_failed_sync_consumes_all_weights_and_resets_the_version(tied):
    model, sampler = tied
    taken = []

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in [("nowhere.weight", torch.zeros(2)), *named(model)]:
            taken.append(name)
            yield name, tensor

    with pytest.raises(RunError, match="did not load weights 140"):
        sampler.sync(weights(), 140)
    assert len(taken) == 1 + len(named(model))
    assert sampler.received().version == -1
    push(sampler, model, 141)
    assert gap(model, draw(sampler)) < TOLERANCE


def test_weights_that_are_not_finite_raise_an_error(tied):
    model, sampler = tied
    broken = [(name, tensor * float("nan")) for name, tensor in named(model)]
    sampler.sync(iter(broken), 150)
    with pytest.raises(RunError, match="not finite"):
        draw(sampler)
    push(sampler, model, 151)


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ([], {}, "has no tokens"),
        ([4] * 510, {}, "exceed the 512 positions"),
        ([99], {}, "outside the model's 20"),
        ([4], {"temperature": 0.001}, "at least 0.01"),
    ],
)
def test_prompts_and_settings_that_vllm_would_refuse_or_change_are_refused(
    tied, prompt, settings, message
):
    with pytest.raises(ConfigError, match=message):
        draw(tied[1], [prompt], **settings)


@pytest.mark.slow
def test_an_unknown_vllm_argument_is_a_config_error(engines):
    engines.close()
    assert not torch.distributed.is_initialized()
    with pytest.raises(ConfigError, match=r"sampling\.vllm: .*no_such_argument"):
        VllmSampler(
            str(engines.folder / "tied"),
            build_tokenizer(),
            eos=[2],
            settings=VllmSettings(extra={"no_such_argument": 1}),
            dtype=torch.float32,
        )


RANK = """
import sys, torch, torch.distributed as dist
from vllm_tools import *
from rlobj.samplers.vllm import *
from transformers import AutoModelForCausalLM
dist.init_process_group("gloo")
model, tokenizer = AutoModelForCausalLM.from_pretrained(sys.argv[1]), build_tokenizer()
sampler = VllmSampler(sys.argv[1], tokenizer, eos=[2], dtype=torch.float32,
                      settings=VllmSettings(kv_cache_bytes=64 << 20))
jitter(model, seed=1)
push(sampler, model, 1)
mine = prompts()[dist.get_rank()::2]
off = gap(model, draw(sampler, mine))
sampler.close()
dist.barrier()
assert off < TOLERANCE
"""


@pytest.mark.slow
def test_every_rank_has_its_own_engine(tmp_path):
    save_policy(tmp_path / "policy", tied=True)
    script = tmp_path / "rank.py"
    script.write_text(RANK, encoding="utf-8")
    run_ranks([script, tmp_path / "policy"], **TEST_MODULES, **WITH_VLLM)
