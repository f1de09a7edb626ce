"""Conversations of a tiny policy with environments: turns, limits, failures, and a killed run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from forked import wait_until
from runs import finish, metrics, program, same, weights

from rlobj.base.errors import ConfigError, RunError
from rlobj.conversations import EnvironmentSettings, Turn
from rlobj.conversations.driving import restore, state_of
from rlobj.conversations.ledger import Ledger
from rlobj.conversations.opening import open_conversations
from rlobj.data import Problem
from rlobj.models.embedded import SCRATCHPAD_ALPHABET, build_policy, build_tokenizer
from rlobj.samplers import Sample, SamplingSettings, TransformersSampler
from rlobj.scoring import PolicyScorer, score_samples

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


def hold(
    model: Any,
    environment: Any = Echo,
    *,
    problems: Any = PROBLEMS,
    ledger: Ledger | None = None,
    context: int | None = None,
    tokens: int = 60,
    **settings: Any,
) -> list[Sample]:
    """Two conversations about each problem; a turn ends with a semicolon or the end token."""
    sampler = TransformersSampler(model, TOKENIZER)
    given = EnvironmentSettings(target="given", **settings)
    asked = SamplingSettings(max_tokens=tokens, stop=(";",))
    seeds = [int(problem.id) for problem in problems]
    with open_conversations(
        given, sampler, TOKENIZER, None, lambda x: x.prompt, given=environment, context=context
    ) as conversations:
        found = conversations.sample(problems, count=2, settings=asked, seeds=seeds, ledger=ledger)
    return [sample for group in found for sample in group]


def ends(samples: list[Sample]) -> set[str]:
    return {sample.turns[-1].end for sample in samples}


def test_the_policys_tokens_are_rows_and_what_it_reads_is_context(model):
    samples = hold(model)
    assert max(len(sample.turns) for sample in samples) == 3
    for sample in samples:
        assert sum(turn.size for turn in sample.turns) == len(sample.tokens)
        assert len(sample.by_turn()) == len(sample.logprobs) == len(sample.tokens)
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
    pairs = [[(each.prompt, each.response) for each in part] for part in parts]
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


def test_an_opening_that_leaves_no_room_is_refused(model):
    with pytest.raises(
        ConfigError,
        match=r"problem '10' has 5 tokens and leaves no room for a turn: sampling.context is 5",
    ):
        hold(model, context=5)


class Briefly(Echo):
    """Opens with a text of its own."""

    def reset(self, problem: Problem) -> Any:
        return [{"role": "user", "content": "1"}]


def checked(model: Any, environment: Any, context: int | None) -> None:
    sampler = TransformersSampler(model, TOKENIZER)
    given = EnvironmentSettings(target="given")
    with open_conversations(
        given, sampler, TOKENIZER, None, lambda x: x.prompt, given=environment, context=context
    ) as conversations:
        assert conversations is not None
        conversations.check([*PROBLEMS, Problem("long", "1+1+1+1=", "4")])


def test_openings_without_room_are_found_before_a_run(model):
    message = r"problem 'long' has 8 tokens .*: sampling.context is 8\. Give sampling.context mo"
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
    def step(self, messages: Any) -> Turn:
        time.sleep(60)
        return Turn()


@pytest.mark.parametrize(
    ("environment", "raised", "error"),
    [
        (Fails, OSError("no disk\x1b[31m"), "error"),
        (Fails, SystemExit(3), "error"),
        (Fails, StopIteration(), "error"),
        (FailsLater, KeyboardInterrupt(), "error"),
        (FailsLater, asyncio.CancelledError(), "error"),
        (Hangs, None, "timeout"),
    ],
)
def test_an_environment_that_fails_ends_its_conversation_and_not_the_run(
    model, environment, raised, error, monkeypatch, caplog
):
    monkeypatch.setattr(environment, "error", raised, raising=False)
    with caplog.at_level(logging.WARNING):
        samples = hold(model, environment, deadline=0.3, max_failures=1000)
    assert ends(samples) <= {"broken", "tokens"}
    assert {use.error for s in samples for use in s.turns[-1].uses} == {error}
    assert caplog.text.count(environment.__name__) == 1


class Odd(Echo):
    found: Any = None

    def step(self, messages: Any) -> Any:
        return self.found


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"Odd\.step returned None; expected Turn"),
        (Turn(reward="1"), "the reward '1'; expected a finite number"),
        (Turn(correct=1), "correct=1; expected True, False or None"),
        (Turn(done="yes"), "done='yes'"),
        (Turn(observation=[{"role": "user"}]), "expected a text, or a list of messages"),
        (Turn(observation=[{"role": "user", "content": "", "at": Odd}]), "messages of plain data"),
        (Turn(uses=["x"]), r"uses=\['x'\]; expected a tuple of ToolUse"),
    ],
)
def test_an_environment_that_returns_nonsense_is_named(model, found, message):
    Odd.found = found
    with pytest.raises(RunError, match=message):
        hold(model, Odd)


def test_the_booleans_of_numpy_are_booleans(model):
    class Numpy(Echo):
        def step(self, messages: Any) -> Any:
            return Turn(done=numpy.True_, correct=numpy.bool_(False))

    assert {x.turns[-1].correct for x in hold(model, Numpy) if x.finish == "stop"} == {False}


class Names(Echo):
    """Attributes with names of the library's own."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.finish, self.seed_given = [], False, 7

    def seed(self, number: int) -> None:
        self.seed_given = number

    def state(self) -> str:
        return "open"


def test_attributes_of_an_environment_may_have_any_names(model, tmp_path):
    whole = hold(model, Names, ledger=ledger(tmp_path))
    assert "broken" not in ends(whole)
    assert hold(model, Names, ledger=ledger(tmp_path)) == whole


def test_an_environment_that_needs_arguments_is_refused(model):
    class Needs(Echo):
        def __init__(self, size: int) -> None: ...

    with pytest.raises(ConfigError, match=r"Needs'> cannot be made without arguments: TypeError"):
        hold(model, Needs)


def test_an_environment_with_other_parameters_is_told_how_to_name_them(model):
    class Other:
        def reset(self, p: Any) -> None: ...

        def step(self, conversation: Any) -> Turn:
            return Turn()

    with pytest.raises(ConfigError, match=r"reset\(self, problem\) and step\(self, messages\)"):
        hold(model, Other)


def test_an_environment_that_cannot_begin_is_named_with_the_problem(model):
    class Lost(Echo):
        def reset(self, problem: Problem) -> None:
            raise KeyError(problem.id)

    with pytest.raises(RunError, match=r"Lost\.reset failed on problem '1\d': KeyError"):
        hold(model, Lost)


# The ledger.


def ledger(folder: Path, fits: Any = lambda facts, version: True) -> Ledger:
    return Ledger(folder, 0, "key", fits)


def calls_of(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_turns_that_were_kept_are_not_asked_again(model, tmp_path):
    log = tmp_path / "calls"

    class Counted(Echo):
        def step(self, messages: Any) -> Turn:
            with log.open("a") as file:
                file.write("x\n")
            return super().step(messages)

    whole = hold(model, Counted, ledger=ledger(tmp_path / "step"))
    calls = len(calls_of(log))
    assert calls == sum(turn.end != "tokens" for sample in whole for turn in sample.turns)
    [file] = (tmp_path / "step").glob("turns-*")
    lines = file.read_bytes().splitlines(keepends=True)
    for kept in (len(lines), len(lines) // 2, 1):
        log.unlink(missing_ok=True)
        folder = tmp_path / f"step-{kept}"
        folder.mkdir()
        torn = lines[kept][:20] if kept < len(lines) else b""
        (folder / file.name).write_bytes(b"".join(lines[:kept]) + torn)
        assert hold(model, Counted, ledger=ledger(folder)) == whole
        stored = [json.loads(line.partition(b" ")[2]) for line in lines[:kept]]
        answered = sum(x["number"] > 0 and x["turn"]["end"] != "tokens" for x in stored)
        assert len(calls_of(log)) == calls - answered


def test_turns_of_other_settings_or_weights_are_drawn_again(model, tmp_path):
    hold(model, ledger=ledger(tmp_path))
    asked: list[Any] = []

    def fits(facts: str, version: int) -> bool:
        asked.append((facts, version))
        return False

    began = ledger(tmp_path, fits)
    assert hold(model, ledger=began) == hold(model)
    assert set(asked) == {("key", 0)}


class Own:
    def __init__(self) -> None:
        self.open = object()
        self.count = 0

    def state(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


def test_the_state_of_an_environment_is_its_plain_attributes_or_what_it_says():
    echo, own = Echo(), Own()
    echo.seen, own.count = [3, 1], 4
    for environment, again in ((echo, Echo()), (own, Own())):
        restore(again, json.loads(json.dumps(state_of(environment))))
        assert state_of(again) == state_of(environment)
    echo.seen = {1, 2}  # type: ignore[assignment]
    assert state_of(echo) is None


ENVIRONMENT = """
import os, time
from rlobj.conversations import Turn

class Count:
    def __init__(self):
        self.number = 0

    def reset(self, problem):
        self.problem = problem.id

    def step(self, messages):
        self.number += 1
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{self.problem}/{hash(messages[-1]['content'])}/{self.number}\\n")
        time.sleep(0.01)
        return Turn(f"{self.number};", reward=self.number / 10, done=self.number == 3)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_bit_and_asks_no_tool_twice(tmp_path):
    (tmp_path / "count.py").write_text(ENVIRONMENT)
    words: list[Any] = ["train", "--preset", "grpo", "--task", "scratchpad-3"]
    for setting in (
        *(f"environment.target={tmp_path}/count.py:Count", "sampling.stop=[';']"),
        *("training.steps=3", "sampling.prompts_per_step=8", "sampling.group_size=4"),
        *("evaluation.every=0", "checkpoint.every=1", "sampling.max_tokens=40"),
    ):
        words += ["--set", setting]
    given = {"PYTHONHASHSEED": "0", "COLUMNS": "200"}
    calls = tmp_path / "calls"
    log, reference = tmp_path / "log", tmp_path / "whole"
    finish(program([*words, "--out", str(reference)], log, CALLS=str(calls), **given), log)
    expected = sorted(calls_of(calls))
    calls.unlink()
    run = tmp_path / "killed"
    process = program([*words, "--out", str(run)], log, CALLS=str(calls), **given)
    third = len(expected) // 3
    wait_until(lambda: len(calls_of(calls)) > third + 60, 180, process, log)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    before = calls_of(calls)
    assert third < len(before) < len(expected)
    again = ["train", "--resume", str(run), "--trust"]
    finish(program(again, log, CALLS=str(calls), **given), log)
    assert same(weights(run), weights(reference))
    assert metrics(run) == metrics(reference)
    found = calls_of(calls)
    running = 32  # one call of each conversation had no answer when the process was killed
    assert set(found) == set(expected)
    assert len(expected) <= len(found) <= len(expected) + running
