"""Environments that hang, block, exit or flood: each call ends, and the run says what happened."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from forked import wait_until
from runs import finish, program
from test_driving import ALPHABET, PROBLEMS, ends, hold

from rlobj.base.errors import ConfigError, RunError
from rlobj.conversations import Turn
from rlobj.conversations.deadlines import Failed, called_now
from rlobj.conversations.grading import sums
from rlobj.data import Problem
from rlobj.models.embedded import build_policy

LONG = 1e9


@pytest.fixture(scope="module")
def model() -> Any:
    return build_policy(0, ALPHABET).eval()


class Sound:
    """Ends a conversation at its first turn."""

    def reset(self, problem: Problem) -> Any:
        self.problem = problem

    def step(self, messages: Any) -> Any:
        return Turn("7;", reward=1.0, done=True, correct=True)


@pytest.fixture(scope="module")
def short(model: Any) -> dict[str, Any]:
    """A deadline that sound calls keep: three times what whole conversations just took here."""
    begun = time.monotonic()
    hold(model, Sound)
    return {"deadline": round(max(0.5, 3 * (time.monotonic() - begun)), 2), "max_failures": 1000}


def spin() -> None:
    while True:
        pass


class Spins(Sound):
    async def step(self, messages: Any) -> Any:
        spin()


class Sleeps(Sound):
    async def step(self, messages: Any) -> Any:
        time.sleep(LONG)


class Swallows(Sound):
    async def step(self, messages: Any) -> Any:
        while True:
            try:
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                continue


class Returns(Sound):
    """An awaitable that blocks, from a plain function."""

    def step(self, messages: Any) -> Any:
        class Blocks:
            def __await__(self) -> Any:
                time.sleep(LONG)
                yield

        return Blocks()


class Explains(Sound):
    """Its exception has no text in time."""

    def step(self, messages: Any) -> Any:
        class Odd(Exception):
            def __str__(self) -> str:
                time.sleep(LONG)
                return ""

        raise Odd


class Late(Sound):
    after = 0.0

    def step(self, messages: Any) -> Any:
        time.sleep(self.after)
        return super().step(messages)


OTHERS = (Sleeps, Swallows, Returns, Explains, Late)


@pytest.mark.parametrize(
    "environment", [Spins, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)]
)
def test_a_step_that_does_not_return_in_time_is_late_whatever_it_does(
    model, environment, short, caplog, monkeypatch
):
    monkeypatch.setattr(Late, "after", 2 * short["deadline"])
    with caplog.at_level(logging.WARNING):
        samples = hold(model, environment, problems=PROBLEMS[:3], **short)
    assert ends(samples) <= {"broken", "tokens"}
    assert {use.error for s in samples for use in s.turns[-1].uses} == {"timeout"}
    text = f"{environment.__name__}.step did not return within {short['deadline']:g} seconds. envi"
    assert caplog.text.count(text) == 1


class Limited(Sound):
    """Reaches the limit of turns."""

    def step(self, messages: Any) -> Any:
        return Turn("7;")


class Asked(Limited):
    async def reward_at_limit(self) -> float:
        time.sleep(LONG)
        return 0.0


class AskedByProperty(Limited):
    @property
    def reward_at_limit(self) -> Any:
        time.sleep(LONG)


class Raises(Limited):
    @property
    def reward_at_limit(self) -> Any:
        raise KeyError("x")


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        pytest.param(Asked, "timeout", marks=pytest.mark.slow),
        (AskedByProperty, "timeout"),
        (Raises, "error"),
    ],
)
def test_what_is_asked_at_a_limit_may_hang_or_raise(model, environment, error, short):
    samples = hold(model, environment, max_turns=2, **short)
    assert "broken" in ends(samples)
    uses = {use for s in samples if s.turns[-1].end == "broken" for use in s.turns[-1].uses}
    assert {(use.name, use.error) for use in uses} == {("reward_at_limit", error)}


class Resets(Sound):
    async def reset(self, problem: Problem) -> Any:
        time.sleep(LONG)


class Cancels(Sound):
    async def step(self, messages: Any) -> Any:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)


def test_a_reset_that_hangs_is_named_with_its_limit(model, short):
    limit = re.escape(f"{short['deadline']:g}")
    message = rf"Resets\.reset did not return within {limit} seconds on problem '1\d'\. environment"
    with pytest.raises(RunError, match=message):
        hold(model, Resets, **short)


def test_a_step_that_cancels_all_tasks_reaches_none_of_the_librarys(model):
    samples = hold(model, Cancels, max_failures=1000)
    assert ends(samples) <= {"broken", "tokens"}


def test_a_factory_that_is_async_is_refused_at_the_start(model):
    async def made() -> Any:
        return Sound()

    with pytest.raises(ConfigError, match="it returns an awaitable; expected a function without"):
        hold(model, made)


def test_a_blocked_loop_holds_up_nothing_but_the_calls_that_block_it(model, short):
    class Blocks(Sound):
        async def step(self, messages: Any) -> Any:
            if self.problem.id == "10":
                time.sleep(LONG)
            return super().step(messages)

    samples = hold(model, Blocks, deadline=2 * short["deadline"], max_failures=2)
    assert ends(samples[:2]) <= {"broken", "tokens"}
    assert ends(samples[2:]) <= {"done", "tokens"}


def test_awaitables_share_one_loop_while_it_is_sound(model):
    loops = set[Any]()

    class Notes(Sound):
        async def step(self, messages: Any) -> Any:
            loops.add(asyncio.get_running_loop())
            return super().step(messages)

    hold(model, Notes)
    hold(model, Notes)
    assert len(loops) == 1


def test_python_code_that_is_late_is_ended():
    ended = threading.Event()

    def spins() -> None:
        try:
            spin()
        finally:
            ended.set()

    with pytest.raises(Failed):
        called_now(spins, 0.2)
    assert ended.wait(300)


def test_too_many_failures_stop_the_run_as_those_of_rewards_do(model):
    class Fails(Sound):
        def step(self, messages: Any) -> Any:
            raise ValueError("no")

    message = r"step failed: ValueError: no\n  at .*hostile.py, line \d+: raise ValueError.*\n"
    message += r"11 of the last \d+ calls failed; environment.max_failures is 10\."
    with pytest.raises(RunError, match=message):
        hold(model, Fails)
    assert "broken" in ends(hold(model, Fails, max_failures=12))


# What an environment returns.


def test_a_long_observation_is_cut_as_that_of_a_tool(model, caplog):
    class Floods(Sound):
        def step(self, messages: Any) -> Any:
            return Turn("1" * 2_000_000 + "2" * 2_000_000)

    with caplog.at_level(logging.WARNING):
        samples = hold(model, Floods, context=100, max_output=20)
    heard = [turn.observation for s in samples for turn in s.turns if turn.observation]
    assert set(heard) <= {"1111111111\n[3,999,980 characters were left out]\n2222222222"}
    text = "Floods.step returned 4,000,000 characters, and environment.max_output is 20"
    assert caplog.text.count(text) == 1


def test_messages_with_too_much_beside_their_contents_are_refused(model):
    class Adds(Sound):
        def step(self, messages: Any) -> Any:
            return Turn([{"role": "user", "content": "7;", "name": "x" * 100_000}])

    with pytest.raises(RunError, match=r"the observation more than 65,536 characters beside"):
        hold(model, Adds)


@pytest.mark.parametrize(
    "reward", [float("1e400"), float("nan"), 10**400, 1e400j, None, [1.0], b"1", bytearray(b"1")]
)
def test_a_reward_that_is_no_finite_number_is_named(model, reward):
    class Gives(Sound):
        def step(self, messages: Any) -> Any:
            return Turn(reward=reward, done=True)

    with pytest.raises(RunError, match=r"Gives\.step returned the reward .*; expected a finite"):
        hold(model, Gives)


def test_a_conversation_that_broke_is_no_call_of_a_tool(model):
    turns = hold(model, Raises, max_turns=2, max_failures=1000)
    broken = [sample for sample in turns if sample.turns[-1].end == "broken"]
    found = sums(broken)
    assert (found["with_calls"], found["calls"], found["errors"]) == (0, 0, 0)
    assert found["at_broken"] == len(broken) > 0


# Signals.

FILE = """
import concurrent.futures, os, time
from rlobj import Turn

class Own:
    def reset(self, problem): ...

class Spins(Own):
    async def step(self, messages):
        open(os.environ["BEGUN"], "w").close()
        while True:
            try:
                while True:
                    pass
            except BaseException:
                continue

class Waits(Own):
    def step(self, messages):
        open(os.environ["BEGUN"], "w").close()
        self.threads = concurrent.futures.ThreadPoolExecutor(1)
        self.threads.submit(time.sleep, 1e9).result()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("Spins", signal.SIGTERM), ("Waits", signal.SIGINT)])
def test_a_second_signal_ends_a_run_whose_environment_hangs(name, number, tmp_path: Path):
    (tmp_path / "own.py").write_text(FILE)
    words: list[Any] = ["train", "--preset", "grpo", "--task", "addition"]
    words += ["--environment", f"{tmp_path}/own.py:{name}", "--out", tmp_path / "run"]
    words += ["--set", "environment.deadline=3600", "--set", "evaluation.every=0"]
    log, begun = tmp_path / "log", tmp_path / "begun"
    process = program(words, log, BEGUN=str(begun))
    try:
        wait_until(begun.exists, 300, process, log)
        os.kill(process.pid, number)
        wait_until(lambda: "a second signal stops at once" in log.read_text(), 300, process, log)
        time.sleep(1.5)  # until then it is an echo of the first one
        os.kill(process.pid, number)
    finally:
        finish(process, log, 128 + number)
