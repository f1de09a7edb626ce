"""Conversations of a tiny policy with environments: turns, limits, failures, and a resumed run."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import threading
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from benchmarks.embedded_policy import build_policy, build_tokenizer
from runs import make_steps, metrics, same, weights
from tiny import tiny_config

from rlobj.base.errors import ConfigError, RunError
from rlobj.conversations import EnvironmentSettings, Turn
from rlobj.conversations.driving import Talk
from rlobj.conversations.environment import limited_text
from rlobj.conversations.grading import sums
from rlobj.conversations.opening import open_conversations
from rlobj.data import Problem
from rlobj.models.embedded import SCRATCHPAD_ALPHABET
from rlobj.samplers import Feed, Response, SamplingSettings, TransformersSampler
from rlobj.samplers.types import Abandoned
from rlobj.scoring import PolicyScorer, score_samples
from rlobj.training import run_training

ALPHABET = SCRATCHPAD_ALPHABET + "?"
TOKENIZER = build_tokenizer(ALPHABET)
PROBLEMS = [Problem(str(n), f"{n}*7=", str(n * 7)) for n in range(10, 16)]


class Echo:
    """Repeats the length of each turn, three times."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def reset(self, problem: Problem) -> None:
        return None

    def step(self, messages: Any) -> Turn:
        self.seen.append(len(messages[-1]["content"]))
        return Turn(f"{self.seen[-1]};", reward=0.5, done=len(self.seen) == 3, correct=True)


@pytest.fixture(scope="module")
def model():
    return build_policy(0, ALPHABET).eval()


def opened(
    model: Any, environment: Any, context: int | None, **settings: Any
) -> AbstractContextManager[Any]:
    return open_conversations(
        EnvironmentSettings(target="given", **settings),
        TransformersSampler(model, TOKENIZER),
        TOKENIZER,
        None,
        lambda problem: problem.prompt,
        environment=environment,
        context=context,
    )


def hold(
    model: Any,
    environment: Any = Echo,
    *,
    problems: Any = PROBLEMS,
    context: int | None = None,
    tokens: int = 60,
    rollout_tokens: int | None = None,
    **settings: Any,
) -> list[Response]:
    """Two conversations about each problem; a turn ends with a semicolon or the end token."""
    sampling = SamplingSettings(max_tokens=tokens, rollout_tokens=rollout_tokens, stop=(";",))
    seeds = [int(problem.id) for problem in problems]
    with opened(model, environment, context, **settings) as conversations:
        groups = conversations.sample(problems, count=2, settings=sampling, seeds=seeds)
    return [sample for group in groups for sample in group]


def ends(samples: list[Response]) -> set[str]:
    return {sample.turns[-1].end for sample in samples}


def test_the_policys_tokens_are_rows_and_what_it_reads_is_context(model):
    samples = hold(model)
    assert max(len(sample.turns) for sample in samples) == 3
    for sample in samples:
        assert sum(turn.size for turn in sample.turns) == len(sample.tokens)
        assert len(sample.logprobs) == len(sample.tokens)
        for turn in sample.turns[:-1]:
            assert TOKENIZER.decode(turn.observed) == turn.observation == f"{len(turn.text)};"
        assert sample.text == sample.turns[-1].text
        assert (sample.finish == "stop") == (sample.turns[-1].end == "done")


@pytest.mark.parametrize("packed", [False, True])
def test_the_trainer_scores_the_turns_as_they_were_drawn(model, packed):
    samples = [*hold(model), *hold(model, tokens=9)]
    scorer = PolicyScorer(model)
    scorer.packed = packed
    parts = [[sample] for sample in samples] if packed else [samples]  # one row has one sequence
    pairs = [[(each.prompt, each.interleaved) for each in part] for part in parts]
    scored = torch.cat([score_samples(scorer, part).logprobs for part in pairs])
    drawn = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    assert torch.allclose(scored, drawn, atol=1e-5)


def test_a_conversation_does_not_depend_on_those_beside_it(model):
    for one, other in zip(hold(model, problems=PROBLEMS[3:5]), hold(model)[6:10], strict=True):
        assert (one.turns, one.tokens) == (other.turns, other.tokens)
        assert one.logprobs.tolist() == pytest.approx(other.logprobs.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "end"),
    [
        ({"max_turns": 2}, "turns"),
        ({"tokens": 7}, "tokens"),
        ({"context": 12}, "tokens"),
    ],
)
def test_a_limit_ends_a_conversation(model, settings, end):
    samples = hold(model, **settings)
    assert end in ends(samples)
    for sample in samples:
        assert len(sample.turns) <= settings.get("max_turns", 3)
        assert len(sample.tokens) <= settings.get("tokens", 60)
        read = sum(len(turn.observed) for turn in sample.turns)
        assert len(sample.prompt) + len(sample.tokens) + read <= settings.get("context", 128)


class Briefly(Echo):
    """Opens with a text of its own."""

    def reset(self, problem: Problem) -> Any:
        return [{"role": "user", "content": "1"}]


def checked(model: Any, environment: Any, context: int | None) -> None:
    with opened(model, environment, context) as conversations:
        assert conversations is not None
        conversations.check([*PROBLEMS, Problem("long", "1+1+1+1=", "4")])


def test_openings_without_room_are_found_before_a_run(model):
    message = r"problem 'long' has 8 tokens, and a .* may have 8\. Raise sampling\.context"
    with pytest.raises(ConfigError, match=message):
        checked(model, Echo, 8)
    checked(model, Echo, 9)
    checked(model, Briefly, 8)
    checked(model, Echo, None)


def test_what_an_environment_gives_at_a_limit_is_added_to_the_last_turn(model):
    class Generous(Echo):
        def reward_at_limit(self) -> float:
            return 4.0

    for sample in hold(model, Generous, max_turns=2):
        last = sample.turns[-1]
        step = 0.5 if last.uses or last.end == "turns" else 0.0
        assert last.reward == step + 4.0 * (last.end in ("turns", "tokens"))


def test_the_seed_of_tools_is_that_of_the_conversation_and_the_turn(model):
    class Seeded(Echo):
        conversation_seed = 0

        def step(self, messages: Any) -> Turn:
            self.seen.append(self.conversation_seed)
            return Turn(f"{self.conversation_seed};", done=len(self.seen) == 3)

    samples = hold(model, Seeded)
    seeds = [turn.observation for sample in samples for turn in sample.turns if turn.observation]
    assert len(seeds) == len(set(seeds)) > 6
    assert [each.turns for each in samples] == [each.turns for each in hold(model, Seeded)]


class Fails(Echo):
    error: BaseException

    def step(self, messages: Any) -> Turn:
        raise self.error


class FailsLater(Fails):
    async def step(self, messages: Any) -> Turn:
        raise self.error


class Hangs(Echo):
    async def step(self, messages: Any) -> Turn:
        await asyncio.sleep(60)
        return Turn()


class Limited(Echo):
    """Fails at the limit of turns."""

    error: BaseException

    def step(self, messages: Any) -> Turn:
        return Turn("7;")

    def reward_at_limit(self) -> float:
        raise self.error


@pytest.mark.parametrize(
    ("environment", "raised", "error"),
    [
        (Fails, OSError("no disk\x1b[31m"), "error"),
        (Fails, SystemExit(3), "error"),
        (Fails, StopIteration(), "error"),
        (FailsLater, KeyboardInterrupt(), "error"),
        (FailsLater, asyncio.CancelledError(), "error"),
        (Hangs, None, "timeout"),
        (Limited, KeyError("x"), "error"),
    ],
)
def test_an_environment_that_fails_ends_its_conversation_and_not_the_run(
    model, environment, raised, error, monkeypatch, caplog
):
    monkeypatch.setattr(environment, "error", raised, raising=False)
    with caplog.at_level(logging.WARNING):
        deadline = 0.3 if environment is Hangs else 300
        samples = hold(model, environment, deadline=deadline, max_failures=1000, max_turns=2)
    assert ends(samples) <= {"broken", "tokens"}
    broken = [sample for sample in samples if sample.turns[-1].end == "broken"]
    assert {use.error for sample in broken for use in sample.turns[-1].uses} == {error}
    counts = sums(broken)  # what broke is no call of a tool
    assert (counts["calls"], counts["at_broken"]) == (0, len(broken))
    assert caplog.text.count(environment.__name__) == 1


def test_too_many_failures_stop_the_run(model, monkeypatch):
    monkeypatch.setattr(Fails, "error", ValueError("no"), raising=False)
    message = r"Fails\.step failed: ValueError: no\n  at .*driving.py, line \d+: raise self.*\n"
    message += r"11 of the last \d+ calls failed; environment.max_failures is 10\."
    with pytest.raises(RunError, match=message):
        hold(model, Fails)


def test_a_text_has_at_most_its_characters_beside_the_mark():
    assert limited_text("1" * 20, 20) == "1" * 20
    assert limited_text("1" * 10 + "2" * 15, 20) == (
        "1111111111\n[5 characters were left out]\n2222222222"
    )


def test_a_long_observation_is_cut_as_that_of_a_tool(model):
    class Floods(Echo):
        def step(self, messages: Any) -> Turn:
            return Turn("1" * 2_000_000 + "2" * 2_000_000)

    samples = hold(model, Floods, context=100, max_output=20)
    heard = [turn.observation for s in samples for turn in s.turns if turn.observation]
    assert set(heard) <= {"1111111111\n[3,999,980 characters were left out]\n2222222222"}


class Odd(Echo):
    found: Any = None

    def step(self, messages: Any) -> Any:
        return self.found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"Odd\.step returned None; expected Turn"),
        (Turn(reward="1"), "the reward '1'; expected a finite number"),
        (Turn(reward=float("nan")), "the reward nan; expected a finite number"),
        (Turn(reward=10**400), "the reward 1000.*; expected a finite number"),
        (Turn(correct=1), "correct=1; expected True, False or None"),
        (Turn(done="False"), "done='False'; expected True or False"),
        (Turn(observation=[{"role": "user"}]), "expected a text, or a list of messages"),
        (Turn(observation=[{"role": "user", "content": "", "at": Odd}]), "messages of plain data"),
    ],
)
def test_an_environment_that_returns_nonsense_is_named(model, found, message):
    Odd.found = found
    with pytest.raises(RunError, match=message):
        hold(model, Odd)


def test_an_environment_that_needs_arguments_is_refused(model):
    class Needs(Echo):
        def __init__(self, size: int) -> None: ...

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        hold(model, Needs)


def test_an_environment_that_cannot_begin_is_named_with_the_problem(model):
    class Lost(Echo):
        def reset(self, problem: Problem) -> None:
            raise KeyError(problem.id)

    with pytest.raises(
        RunError, match=r"Lost\.reset failed on problem '1\d': KeyError: .*\n  at .*py, line "
    ):
        hold(model, Lost)


class Sevens(Echo):
    """Draws its rewards, and says what the tiny policies can read."""

    conversation_seed = 0

    def step(self, messages: Any) -> Turn:
        turn = super().step(messages)
        return dataclasses.replace(
            turn, observation="7,", reward=random.Random(self.conversation_seed).random()
        )


def test_a_resumed_run_holds_the_same_conversations_again(policy, tmp_path):
    """Cut off after step 3, with a checkpoint of step 2."""
    sections = {"training": {"steps": 4}, "checkpoint": {"every": 2}}
    sections["sampling"] = {"prompts_per_step": 4, "group_size": 4, "max_tokens": 12}
    config = tiny_config(policy, "grpo", environment={"target": f"{__name__}:Sevens"}, **sections)
    run_training(config, tmp_path / "whole")
    make_steps(config, tmp_path / "cut", 3)
    assert make_steps(config, tmp_path / "cut", 2, resume=True) == [2, 3]
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")
    assert metrics(tmp_path / "whole")[-1]["turns/mean"] > 1


class Slow(Echo):
    """Waits in its first step until somebody lets it go on."""

    free = threading.Event()

    def step(self, messages: Any) -> Turn:
        if not self.seen:
            assert self.free.wait(60)
        return super().step(messages)


def streamed(model: Any, talks: Feed[Talk], ended: Any) -> tuple[threading.Thread, list[Any]]:
    """A thread that holds the conversations of a feed, and the errors that end it."""
    errors: list[Any] = []

    def hold_them() -> None:
        with opened(model, Slow, None) as conversations:
            settings = SamplingSettings(max_tokens=60, stop=(";",))
            try:
                conversations.stream(talks, settings, ended)
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=hold_them)
    thread.start()
    return thread, errors


def test_conversations_join_those_that_are_held_and_are_those_of_a_call_for_all(model):
    Slow.free.set()
    expected = hold(model, problems=PROBLEMS[:2])
    talks: Feed[Talk] = Feed([Talk((0, 0), PROBLEMS[0], 10)])
    rollouts: dict[Any, Any] = {}

    def ended(talk: Talk, rows: Any) -> None:
        rollouts[talk.place] = rows
        if talk.place == (0, 0):
            for place in ((0, 1), (1, 0), (1, 1)):
                talks.put(Talk(place, PROBLEMS[place[0]], 10 + place[0]))
        if len(rollouts) == 4:
            talks.close()

    thread, errors = streamed(model, talks, ended)
    thread.join(60)
    found = [row for _, rows in sorted(rollouts.items()) for row in rows]
    assert [(row.tokens, row.turns) for row in found] == [
        (row.tokens, row.turns) for row in expected
    ]
    assert not errors


def test_conversations_that_are_abandoned_do_not_wait_for_their_environments(model):
    Slow.free.clear()
    talks: Feed[Talk] = Feed([Talk((0, 0), PROBLEMS[0], 10)])
    thread, errors = streamed(model, talks, lambda *_: None)
    talks.abandon()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in errors] == [Abandoned]
    Slow.free.set()
