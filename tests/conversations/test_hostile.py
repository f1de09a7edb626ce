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
from rlobj.conversations import EnvironmentSettings, MethodEnvironment, Turn, adapted, deadlines
from rlobj.conversations.deadlines import Failed, called, called_now
from rlobj.conversations.environment import limited_messages
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
    """A deadline that sound calls keep: this machine just held whole conversations in this time."""
    begun = time.monotonic()
    hold(model, Sound)
    return {"deadline": round(max(0.3, time.monotonic() - begun), 2), "max_failures": 1000}


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


class Executor(Sound):
    async def step(self, messages: Any) -> Any:
        await asyncio.to_thread(time.sleep, LONG)


class Shows(Sound):
    """What it returns cannot be shown in time."""

    def step(self, messages: Any) -> Any:
        class Odd:
            def __repr__(self) -> str:
                time.sleep(LONG)
                return ""

        return Odd()


class Weighs(Sound):
    """Its reward is no number in time."""

    def step(self, messages: Any) -> Any:
        class Odd:
            def __float__(self) -> float:
                time.sleep(LONG)
                return 0.0

        odd: Any = Odd()
        return Turn(reward=odd)


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


class LateAsync(Late):
    async def step(self, messages: Any) -> Any:
        return super().step(messages)


OTHERS = (Sleeps, Swallows, Returns, Executor, Shows, Weighs, Explains, Late, LateAsync)


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
    ("environment", "error"), [(Asked, "timeout"), (AskedByProperty, "timeout"), (Raises, "error")]
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


class Raising(Sound):
    raised: type[BaseException]

    async def step(self, messages: Any) -> Any:
        raise self.raised


def test_a_reset_that_hangs_is_named_with_its_limit(model, short):
    limit = re.escape(f"{short['deadline']:g}")
    message = rf"Resets\.reset did not return within {limit} seconds on problem '1\d'\. environment"
    with pytest.raises(RunError, match=message):
        hold(model, Resets, **short)


def test_an_environment_that_takes_too_long_to_make_is_named(model, short):
    made = list[int]()

    class Makes(Sound):
        def __init__(self) -> None:
            made.append(1)
            if len(made) > 2:
                time.sleep(LONG)

    with pytest.raises(RunError, match="the environment cannot be made: it did not return within"):
        hold(model, Makes, **short)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_exceptions_that_end_programs_end_the_conversation(model, raised, monkeypatch):
    monkeypatch.setattr(Raising, "raised", raised, raising=False)
    samples = hold(model, Raising, max_failures=1000)
    assert {use.error for s in samples for use in s.turns[-1].uses} == {"error"}


def test_a_step_that_cancels_all_tasks_reaches_none_of_the_librarys(model):
    samples = hold(model, Cancels, max_failures=1000)
    assert ends(samples) <= {"broken", "tokens"}


def test_a_call_that_is_cancelled_before_it_begins_has_failed():
    """Nobody would end the wait for its beginning."""
    begun = threading.Event()

    async def cancels() -> None:
        begun.set()
        while not deadlines._sound_loop().waiting:  # for this loop: the other call
            time.sleep(0.01)
        await asyncio.sleep(0)
        for task in asyncio.all_tasks():
            task.cancel()

    async def sound() -> int:
        return 1

    async def both() -> list[Any]:
        async def later() -> int:
            await asyncio.to_thread(begun.wait)
            return await called(sound, 60)

        return await asyncio.gather(called(cancels, 60), later(), return_exceptions=True)

    first, other = asyncio.run(asyncio.wait_for(both(), 60))
    assert first is None
    assert isinstance(other, Failed)
    assert other.text == "CancelledError: another call cancelled it"


def test_an_object_whose_end_hangs_holds_up_nothing(model):
    class Held(Sound):
        def step(self, messages: Any) -> Any:
            self.used = True
            return super().step(messages)

        def __del__(self) -> None:
            if hasattr(self, "used"):
                time.sleep(LONG)

    assert ends(hold(model, Held)) <= {"done", "tokens"}


def test_an_object_whose_class_cannot_be_asked_is_an_environment(model):
    class Proxy(Sound):
        def __getattribute__(self, name: str) -> Any:
            if name == "__class__" and "problem" in vars(self):
                time.sleep(LONG)
            return super().__getattribute__(name)

    assert "done" in ends(hold(model, Proxy))


def test_a_task_factory_of_the_users_is_not_asked(model):
    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    class Sets(Sound):
        async def step(self, messages: Any) -> Any:
            asyncio.get_running_loop().set_task_factory(fails)
            return super().step(messages)

    assert ends(hold(model, Sets)) <= {"done", "tokens"}


def test_a_factory_that_is_async_is_refused_at_the_start(model):
    async def made() -> Any:
        return Sound()

    with pytest.raises(ConfigError, match="it returns an awaitable; expected a function without"):
        hold(model, made)


def test_a_step_that_stops_its_loop_goes_on(model):
    class Stops(Sound):
        async def step(self, messages: Any) -> Any:
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0.001)
            return super().step(messages)

    assert "done" in ends(hold(model, Stops, max_failures=0))


def test_a_blocked_loop_holds_up_nothing_but_the_calls_that_block_it(model, short):
    class Blocks(Sound):
        async def step(self, messages: Any) -> Any:
            if self.problem.id == "10":
                time.sleep(LONG)
            return super().step(messages)

    samples = hold(model, Blocks, deadline=2 * short["deadline"], max_failures=2)
    assert ends(samples[:2]) <= {"broken", "tokens"}
    assert ends(samples[2:]) <= {"done", "tokens"}


def test_a_task_that_outlives_its_step_and_blocks_the_loop_is_left(model, short):
    tasks = list[Any]()

    class Starts(Sound):
        async def step(self, messages: Any) -> Any:
            async def block() -> None:
                time.sleep(4 * short["deadline"])

            if not tasks:
                tasks.append(asyncio.create_task(block()))
            return super().step(messages)

    assert "broken" not in ends(hold(model, Starts, deadline=short["deadline"], max_failures=0))


def test_awaitables_share_one_loop_while_it_is_sound(model):
    loops = set[Any]()

    class Notes(Sound):
        async def step(self, messages: Any) -> Any:
            loops.add(asyncio.get_running_loop())
            return super().step(messages)

    hold(model, Notes)
    hold(model, Notes)
    assert len(loops) == 1


@pytest.mark.slow
def test_a_call_that_waits_behind_one_that_blocks_does_not_count_as_failed():
    """The first call awaits; the second one blocks the loop; the first one is late, too."""
    begun = threading.Event()

    async def awaits() -> None:
        begun.set()
        await asyncio.sleep(LONG)

    async def blocks() -> None:
        time.sleep(LONG)

    async def both() -> Any:
        first = asyncio.create_task(called(awaits, 5.0))
        await asyncio.to_thread(begun.wait)
        second = called(blocks, 7.0)
        return await asyncio.gather(first, second, return_exceptions=True)

    late = asyncio.run(both())
    assert [(each.why, each.counts) for each in late] == [("timeout", False), ("timeout", True)]


def test_python_code_that_is_late_is_ended():
    ended = threading.Event()

    def spins() -> None:
        try:
            spin()
        finally:
            ended.set()

    with pytest.raises(Failed):
        called_now(spins, 0.2)
    assert ended.wait(60)


def test_too_many_failures_stop_the_run_as_those_of_rewards_do(model):
    class Fails(Sound):
        def step(self, messages: Any) -> Any:
            raise ValueError("no")

    message = r"step failed: ValueError: no\n11 of the last \d+ calls failed; environment.max_fail"
    with pytest.raises(RunError, match=message + r"ures is 10\."):
        hold(model, Fails)
    assert "broken" in ends(hold(model, Fails, max_failures=12))


def test_failures_are_counted_over_calls_of_sample_and_with_those_that_succeed(model):
    class Rarely(Sound):
        count = 0

        def step(self, messages: Any) -> Any:
            Rarely.count += 1
            if Rarely.count % 5 == 0:
                raise ValueError("no")
            return super().step(messages)

    assert {"broken", "done"} <= ends(hold(model, Rarely, max_failures=3))


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


def test_messages_share_the_characters_of_one_answer():
    def of(*sizes: int, most: int) -> list[int]:
        given = [{"role": "user", "content": "x" * size} for size in sizes]
        return [each["content"].count("x") for each in limited_messages(given, most)]

    assert of(1000, 5, 1000, most=101) == [48, 5, 48]
    assert of(10, 20, most=30) == [10, 20]
    assert of(10, 10, 10, most=2) == [0, 1, 1]


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


def test_rewards_whose_sum_is_infinite_are_named(model):
    class Gives(Sound):
        def step(self, messages: Any) -> Any:
            return Turn("7;", reward=1e308)

    with pytest.raises(RunError, match=r"the rewards of Gives for 2 turns .* add up to inf"):
        hold(model, Gives)


@pytest.mark.parametrize("name", ["limits_calls", "made", "pool", "get_reward"])
def test_attributes_that_raise_are_not_read(model, name):
    def raises(self: Any) -> Any:
        raise ValueError("x")

    environment = type("Own", (Sound,), {name: property(raises)})
    assert "broken" not in ends(hold(model, environment, max_failures=0))


def test_what_a_step_does_to_the_messages_reaches_nobody(model):
    class Writes(Sound):
        def step(self, messages: Any) -> Any:
            messages[-1]["content"] = messages[-1]["at"] = object()
            messages.clear()
            return Turn("7;")

    assert "broken" not in ends(hold(model, Writes, max_turns=3, max_failures=0))


def test_a_conversation_that_broke_is_no_call_of_a_tool(model):
    turns = hold(model, Raises, max_turns=2, max_failures=1000)
    broken = [sample for sample in turns if sample.turns[-1].end == "broken"]
    found = sums(broken)
    assert (found["with_calls"], found["calls"], found["errors"]) == (0, 0, 0)
    assert found["at_broken"] == len(broken) > 0


# What is found before a run.


class ReadOnly(Sound):
    @property
    def conversation_seed(self) -> int:
        return 0


class Slots:
    __slots__ = ()
    conversation_seed = 3

    def reset(self, problem: Problem) -> None: ...

    def step(self, messages: Any) -> Turn:
        return Turn()


class Mistyped:
    def reset(self, problem: Problem) -> None: ...

    def stpe(self, messages: Any) -> Turn:
        """
        Answer.

        Args:
            messages: What was said.
        """
        return Turn()


class Alone:
    def reset(self) -> None: ...

    def step(self, messages: Any) -> Turn:
        return Turn()


class Three(Sound):
    def step(self, messages: Any, more: Any) -> Any: ...


class Keyword(Sound):
    def step(self, *, messages: Any) -> Any: ...


class Extra(Sound):
    def reward_at_limit(self, turns: Any) -> float:
        return 0.0


class Renamed:
    def reset(self, row: Any) -> None: ...

    def step(self, msgs: Any) -> Turn:
        """
        Answer.

        Args:
            msgs: What was said.
        """
        return Turn()


class Broken:
    @property
    def reset(self) -> Any:
        raise ValueError("x")

    def step(self, messages: Any) -> Turn:
        return Turn()


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (ReadOnly, r"ReadOnly\.conversation_seed cannot be set"),
        (Slots, r"Slots\.conversation_seed cannot be set"),
        (
            Mistyped,
            r"Mistyped has no method step\(self, messages\)\. Its methods are reset, stpe",
        ),
        (Alone, r"Alone\.reset cannot be called as reset\(problem\): too many positional"),
        (Three, r"Three\.step cannot be called as step\(messages\): missing a required .*'more'"),
        (Keyword, r"Keyword\.step cannot be called as step\(messages\): too many positional"),
        (Extra, r"Extra\.reward_at_limit cannot be called as reward_at_limit\(\): missing"),
        (Renamed, r"Renamed\.reset has no parameter with the name problem"),
        (Broken, r"Broken\.reset cannot be looked up: ValueError: x"),
    ],
)
def test_an_environment_that_cannot_be_asked_is_refused_at_the_start(environment, message):
    with pytest.raises(ConfigError, match=message):
        adapted(environment, EnvironmentSettings())


def test_an_object_of_trl_with_a_column_problem_is_none_of_rlobj():
    class Theirs:
        def reset(self, prompt: Any, answer: str, problem: str) -> None: ...

        def look(self) -> str:
            """Look."""
            return ""

    assert isinstance(adapted(Theirs, EnvironmentSettings())(), MethodEnvironment)


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
        wait_until(begun.exists, 180, process, log)
        os.kill(process.pid, number)
        wait_until(lambda: "a second signal stops at once" in log.read_text(), 60, process, log)
        time.sleep(1.5)  # until then it is an echo of the first one
        os.kill(process.pid, number)
    finally:
        finish(process, log, 128 + number, 60)
