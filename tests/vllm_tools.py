"""What the tests of the vLLM samplers share: sharp little policies, and gaps of log-probs."""

from __future__ import annotations

import asyncio
import copy
import random
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from benchmarks.embedded_policy import build_policy, build_tokenizer
from torch import Tensor

from rlobj.conversations import Call, EnvironmentSettings, Turn
from rlobj.conversations.opening import open_conversations
from rlobj.data import Problem
from rlobj.samplers import Response, Sampler, SamplingSettings, Sent
from rlobj.samplers.syncing import compare
from rlobj.samplers.types import Feed, Request
from rlobj.samplers.vllm import installed
from rlobj.scoring import score_samples

TOLERANCE = 1e-4
"""Largest |Δ log-prob| in float32, nats."""
NEEDS_VLLM = {"condition": installed.installed_vllm() is None, "reason": "vLLM is not installed"}


def save_policy(folder: Path, *, tied: bool, positions: int = 512, vocabulary: int = 20) -> Any:
    """A random policy whose choices are far from uniform, saved with its tokenizer.

    The tokenizer has 20 tokens; the others of a larger vocabulary have no text.
    """
    from transformers import AutoModelForCausalLM

    config = build_policy(0).config
    config.tie_word_embeddings, config.max_position_embeddings = tied, positions
    config.vocab_size = vocabulary
    model = AutoModelForCausalLM.from_config(config)
    jitter(model, seed=1, scale=0.2)
    model.save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@torch.no_grad()
def jitter(model: Any, *, seed: int, scale: float = 0.05) -> None:
    """Move every weight, as an update would."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


def push(sampler: Sampler, model: Any, version: int) -> None:
    """Sync and check what arrived, as a trainer does."""
    sent = Sent(model.named_parameters(), sampler.dtype)
    sampler.sync(sent, version)
    compare(sent.digests, version, sampler.received())


def prompts(count: int = 12) -> list[list[int]]:
    """Additions of one digit, as token ids."""
    tokenizer = build_tokenizer()
    return [tokenizer(f"{index % 10}+{index // 10}=").input_ids for index in range(count)]


def draw(
    sampler: Sampler, ids: Sequence[Sequence[int]] | None = None, **settings: Any
) -> list[Response]:
    """Four responses to each prompt, in one list."""
    ids = prompts() if ids is None else ids
    asked = SamplingSettings(**{"max_tokens": 12, **settings})
    found = sampler.sample(ids, count=4, settings=asked, seeds=range(len(ids)))
    return [sample for samples in found for sample in samples]


@torch.no_grad()
def gap(model: Any, samples: Sequence[Response], **settings: Any) -> float:
    """Largest |Δ log-prob| between the sampler's and the trainer's scoring, nats."""
    scored = score_samples(model, [(each.prompt, each.tokens) for each in samples], **settings)
    own = torch.tensor([logprob for each in samples for logprob in each.logprobs])
    return float((scored.logprobs - own).abs().max())


def named(model: Any) -> list[tuple[str, Tensor]]:
    """Copies of the weights, in a Hugging Face checkpoint's names."""
    return [(name, value.detach().clone()) for name, value in model.named_parameters()]


def check_long_prompts(sampler: Sampler, model: Any) -> None:
    """Prompts with more tokens together than the engine computes in a step."""
    ids = [[4 + (k * n + k // 7) % 10 for k in range(400)] for n in range(16)]
    samples = draw(sampler, ids)
    assert gap(model, samples) < TOLERANCE
    asked = SamplingSettings(max_tokens=12)
    assert [samples[-4:]] == sampler.sample(ids[-1:], count=4, settings=asked, seeds=[15])


class InFlight:
    """A stream in a thread of its own, and responses that are drawn while weights change.

    Attributes:
        weights: of each version; those of 100 are there if this rank is primary.
        responses: in the order of their ends.
        error: with which the stream ended.
    """

    def __init__(self, sampler: Sampler, model: Any, *, primary: bool = True) -> None:
        self.sampler, self.model = sampler, model
        self.feed: Feed[Request] = Feed(together=False)
        self.responses: list[Response] = []
        self.error: Exception | None = None
        self.weights: dict[int, dict[str, Tensor]] = {}
        asked = SamplingSettings(max_tokens=1)

        def draw() -> None:
            try:
                sampler.stream(self.feed, asked, lambda _, drawn: self.responses.append(drawn))
            except Exception as error:
                self.error = error

        if primary:
            self.sync(100)
        self.thread = threading.Thread(target=draw)
        self.thread.start()

    def ask(self, count: int, longest: int = 400) -> None:
        """Put requests in, of different lengths."""
        for k in range(count):
            prompt, size = array("i", prompts()[k % 12]), longest // 2 + 37 * k % (longest // 2)
            self.feed.put(Request((k,), k, prompt, 7 * k, size))

    def sync(self, version: int) -> None:
        """Send weights of a new version, which are kept."""
        jitter(self.model, seed=version)
        push(self.sampler, self.model, version)
        self.weights[version] = copy.deepcopy(self.model.state_dict())

    def end(self) -> None:
        self.feed.close()
        self.thread.join()
        if self.error is not None:
            raise self.error

    def gaps(self) -> list[float]:
        """Of each response: the largest |Δ log-prob| of its tokens, scored by the weights of each
        token's version, nats."""
        pairs = [(each.prompt, each.tokens) for each in self.responses]
        scored = {}
        for version, weights in self.weights.items():
            self.model.load_state_dict(weights)
            with torch.no_grad():
                scored[version] = score_samples(self.model, pairs).logprobs
        found, start = [], 0
        for each in self.responses:
            differ, place = [], 0
            for version, size in each.versions:
                own = torch.tensor(each.logprobs[place : place + size])
                differ.append((scored[version][start + place :][:size] - own).abs().max())
                place += size
            assert place == each.length
            start += place
            found.append(float(max(differ)))
        return found


def check_syncs_in_flight(sampler: Any, model: Any) -> None:
    """200 responses over three syncs at random moments, beside an evaluation."""
    sampler._eos = []  # so that only their lengths end responses
    drawing = InFlight(sampler, model)
    drawing.ask(200)
    for version in (101, 102, 103):
        time.sleep(random.uniform(0.2, 0.8))
        drawing.sync(version)
    between = draw(sampler)
    assert {each.weight_version for each in between} == {103}
    assert gap(model, between) < TOLERANCE
    assert drawing.thread.is_alive()
    drawing.end()
    assert len(drawing.responses) == 200
    crossed = [len(each.versions) - 1 for each in drawing.responses]
    assert sum(crossed) > 200
    assert crossed.count(0) < 20
    assert max(drawing.gaps()) < TOLERANCE
    for each in drawing.responses:
        versions = [version for version, _ in each.versions]
        assert versions == sorted(set(versions))
        assert each.weight_version == versions[-1]


class Slow:
    """Answers twice; the conversations about the first problem wait for the end of all others."""

    others: ClassVar[threading.Event]

    def __init__(self) -> None:
        self.count = 0

    def reset(self, problem: Problem) -> None:
        self.slow = problem.id == "0"

    async def step(self, messages: Any) -> Turn:
        self.count += 1
        while self.slow and not self.others.is_set():
            await asyncio.sleep(0.01)
        return Turn(f"{self.count},", done=self.count == 3)


class Rows:
    """Asks two sub-agents after the first turn, and begins a new context after the second one."""

    def __init__(self) -> None:
        self.count = 0

    def reset(self, problem: Problem) -> None:
        """Begin with the problem."""

    def step(self, messages: Any) -> Turn:
        self.count += 1
        texts = [[{"role": "user", "content": text}] for text in ("1+3=", "3+1=")]
        if self.count == 1:
            return Turn(calls=[Call(text) for text in texts])
        return Turn(restart=texts[0]) if self.count == 2 else Turn(done=True)


def check_rollouts(sampler: Sampler, model: Any) -> None:
    """Rows of new contexts and of sub-agents are scored as they were drawn, and come again."""
    asked = SamplingSettings(max_tokens=40, rollout_tokens=200, stop=("=", "1", "2", "3"))
    settings, tokenizer = EnvironmentSettings(target="given"), build_tokenizer()
    problems = [Problem(str(n), f"{n}+3=", "") for n in range(4)]

    def hold() -> list[Response]:
        with open_conversations(
            settings, sampler, tokenizer, None, lambda x: x.prompt, environment=Rows
        ) as conversations:
            found = conversations.sample(problems, count=2, settings=asked, seeds=range(4))
        return [row for group in found for row in group]

    rows = hold()
    assert {row.began for row in rows} == {"", "call", "restart"}
    scored = score_samples(model, [(row.prompt, row.interleaved) for row in rows])
    drawn = torch.tensor([logprob for row in rows for logprob in row.logprobs])
    assert float((scored.logprobs.detach() - drawn).abs().max()) < TOLERANCE
    assert [(row.id, row.tokens) for row in hold()] == [(row.id, row.tokens) for row in rows]


def check_conversations(sampler: Sampler, model: Any) -> None:
    """Log-probs over whole conversations, their seeds, and a slow tool beside quick ones."""
    problems = [Problem(str(n), f"{n}+3=", "") for n in range(8)]
    asked = SamplingSettings(max_tokens=60, stop=("=",))
    settings, tokenizer = EnvironmentSettings(target="given"), build_tokenizer()
    order: list[int] = []
    Slow.others = threading.Event()

    def note(index: int, _: Any) -> None:
        order.append(index)
        if len(order) == len(problems) - 1:
            Slow.others.set()

    def hold(chosen: list[Problem], done: Callable[[int, Any], None]) -> list[Response]:
        seeds = [int(problem.id) for problem in chosen]
        with open_conversations(
            settings, sampler, tokenizer, None, lambda x: x.prompt, environment=Slow
        ) as conversations:
            found = conversations.sample(
                chosen,
                count=2,
                settings=asked,
                seeds=seeds,
                done=done,
            )
        return [sample for group in found for sample in group]

    samples = hold(problems, note)
    turns = [len(sample.turns) for sample in samples]
    assert max(turns) == 3
    scored = score_samples(model, [(each.prompt, each.interleaved) for each in samples])
    drawn = torch.tensor([logprob for each in samples for logprob in each.logprobs])
    assert float((scored.logprobs.detach() - drawn).abs().max()) < TOLERANCE
    assert sorted(order) == list(range(len(problems)))
    assert order[-1] == 0  # no other conversation waited for it
    again = hold(problems[4:], lambda index, _: None)
    assert [each.tokens for each in again] == [each.tokens for each in samples[8:]]
