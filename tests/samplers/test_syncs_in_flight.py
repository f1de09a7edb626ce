"""TransformersSampler: requests that join, and weights that change, while others are drawn."""

from __future__ import annotations

import copy
import random
import threading
import time
from array import array
from contextlib import contextmanager

import pytest
import torch
import transformers
from samplers.test_samplers import (
    KINDS,
    PROMPTS,
    SIZES,
    WITHOUT,
    flat,
    forced_logits,
    gathered,
    tiny,
    tokenizer,
)
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

from rlobj.base.errors import RunError
from rlobj.samplers import SamplingSettings, TransformersSampler
from rlobj.samplers.types import Feed, Request

__all__ = ["tokenizer"]
FREE = SamplingSettings(max_tokens=40)


def other(kind):
    """A random model of one of WITHOUT."""
    name = kind.split()[0]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES | WITHOUT[kind][0])
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def requests(count, longest=40):
    choice = random.Random(0)
    return [
        Request((i,), i, array("i", PROMPTS[i % 5]), i, choice.randint(longest // 4, longest))
        for i in range(count)
    ]


class Weights:
    """A trainer that changes its weights, keeps each version, and counts the sampler's passes."""

    def __init__(self, model, tokenizer, **options):
        self.kept, self.passes, self.model = [], 0, model
        self.sampler = TransformersSampler(
            copy.deepcopy(model), tokenizer, own_copy=True, **options
        )
        self.sampler.model.register_forward_pre_hook(self._count)
        self.sync()

    def _count(self, *_):
        self.passes += 1

    def sync(self):
        """Send the present weights, and change them."""
        self.kept.append(copy.deepcopy(self.model).eval())
        self.sampler.sync(self.model.named_parameters(), len(self.kept) - 1)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter += 0.03 * torch.randn_like(parameter)

    def gaps(self, response, settings=FREE):
        """For each token: the difference of its log-prob from a forward pass of its weights."""
        warpers = LogitsProcessorList([TemperatureLogitsWarper(settings.temperature)])
        if settings.top_p < 1:
            warpers.append(TopPLogitsWarper(settings.top_p))
        gaps, end = [], 0
        for version, size in response.versions:
            logits = warpers(None, forced_logits(self.kept[version], response))
            gaps.append((gathered(logits, response) - torch.tensor(response.logprobs)).abs())
            gaps[-1] = gaps[-1][end : end + size]
            end += size
        assert end == response.length
        assert response.weight_version == response.versions[-1][0]
        return torch.cat(gaps)


@contextmanager
def drawing(sampler, feed, settings=FREE, done=None):
    """Draw in another thread; the pairs (request, response) so far."""
    drawn, failed = [], []

    def draw():
        try:
            sampler.stream(feed, settings, done or (lambda *pair: drawn.append(pair)))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=draw, daemon=True)
    thread.start()
    try:
        yield drawn
    finally:
        feed.close()
        thread.join()
    if failed:
        raise failed[0]


def in_flight(weights, asked, settings=FREE, between=(3, 12)):
    """Draw responses to requests that come in groups, with syncs at random moments."""
    feed, choice = Feed(asked[:10], together=False), random.Random(1)
    with drawing(weights.sampler, feed, settings) as drawn:
        for start in range(10, len(asked), 9):
            for request in asked[start : start + 9]:
                feed.put(request)
            moment = weights.passes + choice.randint(*between)
            while weights.passes < moment and len(drawn) < start:
                time.sleep(0.0005)
            weights.sync()
    assert sorted(request.key for request, _ in drawn) == list(range(len(asked)))
    return [response for _, response in drawn]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", ["small", "large"])
def test_logprobs_are_those_of_the_weights_of_each_token(kind, size, tokenizer, monkeypatch):
    if size == "large":
        monkeypatch.setattr("rlobj.samplers.attention.LARGE", 0)
    weights = Weights(tiny(kind), tokenizer)
    responses = in_flight(weights, requests(40))
    assert max(len(response.versions) for response in responses) > 1
    for response in responses:
        assert weights.gaps(response).max() < 2e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITHOUT)
def test_so_they_are_without_padding_or_a_cache_that_rows_can_join(kind, tokenizer):
    weights = Weights(other(kind), tokenizer)
    for response in in_flight(weights, requests(30)):
        assert weights.gaps(response).max() < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("change", [{}, {"temperature": 0.7}, {"temperature": 0.7, "top_p": 0.9}])
def test_200_responses_that_cross_one_to_three_syncs(change, tokenizer):
    model = tiny("qwen3")
    settings = SamplingSettings(max_tokens=40, **change)
    weights = Weights(model, tokenizer, batch_tokens=1500)
    weights.sampler._eos = []
    responses = in_flight(weights, requests(330), settings, (12, 25))
    crossing = [r for r in responses if 2 <= len(r.versions) <= 4]
    assert len(crossing) >= 200
    for response in crossing:
        assert weights.gaps(response, settings).max() < 3e-5


def test_requests_that_join_get_the_responses_of_sample(tokenizer):
    weights = Weights(tiny("sliding"), tokenizer)
    asked = requests(40)
    feed = Feed(asked[:5], together=False)

    def done(request, response):
        drawn[request.key] = response
        for other in asked[5:][2 * len(drawn) - 2 : 2 * len(drawn)]:
            feed.put(other)
        if len(drawn) == len(asked):
            feed.close()

    drawn = {}
    weights.sampler.stream(feed, FREE, done)
    for request in asked:
        settings = SamplingSettings(max_tokens=request.max_tokens)
        ((alone,),) = weights.sampler.sample(
            [request.prompt], count=1, settings=settings, seeds=[request.seed]
        )
        assert drawn[request.key].tokens == alone.tokens
        assert drawn[request.key].finish == alone.finish
        assert drawn[request.key].logprobs == pytest.approx(alone.logprobs, abs=1e-5)
        assert drawn[request.key].versions == ((0, alone.length),)


def test_rows_join_within_the_budget_of_tokens(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer, batch_tokens=400)
    rows = []
    weights.sampler.model.register_forward_pre_hook(
        lambda module, inputs, arguments: rows.append(len(arguments["input_ids"])), with_kwargs=True
    )
    in_flight(weights, requests(40))
    assert 4 < max(rows) <= 400 // 40


def test_kept_keys_leave_the_log_probs_of_another_policy_and_the_versions_right(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer, recompute_cache=False)
    responses = in_flight(weights, requests(40))
    crossing = [response for response in responses if len(response.versions) > 1]
    first, later = [], []
    for response in crossing:
        gaps, size = weights.gaps(response), response.versions[0][1]
        first.append(gaps[:size])
        later.append(gaps[size:])
    assert torch.cat(first).max() < 2e-5
    assert torch.cat(later).mean() > 1e-3


@pytest.mark.parametrize(("recompute", "old"), [(True, 3), (False, 4)])
def test_the_token_after_a_sync_is_of_the_old_weights_where_keys_are_kept(
    recompute, old, tokenizer, monkeypatch
):
    weights = Weights(tiny("qwen3"), tokenizer, recompute_cache=recompute)
    weights.sampler._eos = []
    request = Request((0,), 0, array("i", [2, 3]), 0, 10)
    weights.sampler.stream(Feed.whole([request]), FREE, lambda *pair: None)  # with the trial
    before, step = weights.passes, weights.sampler._between.step

    @contextmanager
    def with_sync():
        with step():
            yield
        if weights.passes == before + 4 and len(weights.kept) == 1:
            weights.sync()  # after the prompt and three tokens

    monkeypatch.setattr(weights.sampler._between, "step", with_sync)
    feed, responses = Feed([request], together=False), []
    feed.close()
    weights.sampler.stream(feed, FREE, lambda request, response: responses.append(response))
    assert responses[0].versions == ((0, old), (1, 10 - old))
    assert weights.gaps(responses[0])[:old].max() < 2e-5


def test_an_evaluation_in_between_is_of_one_version_and_the_others_go_on(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer)
    weights.sampler._eos = []
    feed = Feed(requests(60), together=False)
    with drawing(weights.sampler, feed) as drawn:
        while not drawn:
            time.sleep(0.001)
        weights.sync()
        groups = weights.sampler.sample(PROMPTS, count=2, settings=FREE, seeds=range(5))
        expected = weights.sampler.sample(PROMPTS, count=2, settings=FREE, seeds=range(5))
    assert groups == expected
    assert len(drawn) == 60
    for response in [*flat(groups), *(response for _, response in drawn)]:
        assert weights.gaps(response).max() < 2e-5
    assert {response.versions for response in flat(groups)} == {((1, 40),)}


def test_a_sync_waits_for_one_token_at_most(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer)
    weights.sampler._eos = []
    feed = Feed(requests(60), together=False)
    waited = []
    with drawing(weights.sampler, feed) as drawn:
        while len(drawn) < 60:
            before = weights.passes
            with weights.sampler._between.steps():
                waited.append(weights.passes - before)
            assert weights.sampler.received().version == 0
            time.sleep(0.001)
    # The pass of a token, and those of rows that join it or of the trial of the model.
    assert sorted(waited)[-2] <= 2


def test_a_feed_that_is_closed_ends_the_loop_after_the_last_response(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer)
    feed = Feed(together=False)
    with drawing(weights.sampler, feed) as drawn:
        for request in requests(30):
            feed.put(request)
    assert len(drawn) == 30


def test_an_error_of_the_callback_ends_the_loop_and_a_sync_is_still_possible(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer)

    def done(request, response):
        raise RunError("no room on the disk")

    feed = Feed(requests(5), together=False)
    with pytest.raises(RunError, match="no room"), drawing(weights.sampler, feed, done=done):
        pass
    weights.sync()
    assert weights.sampler.received().version == 1
    assert flat(weights.sampler.sample(PROMPTS, count=1, settings=FREE, seeds=range(5)))


def test_half_precision_computes_with_the_new_weights_after_a_sync(tokenizer):
    weights = Weights(tiny("qwen3"), tokenizer, autocast=torch.bfloat16)
    for response in in_flight(weights, requests(40)):
        assert weights.gaps(response).median() < 0.1


def test_only_a_sampler_with_its_own_copy_takes_syncs_in_flight(tokenizer):
    model = tiny("qwen3")
    assert not TransformersSampler(model, tokenizer).syncs_in_flight
    assert TransformersSampler(model, tokenizer, own_copy=True).syncs_in_flight
