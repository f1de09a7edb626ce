"""User code that raises, hangs, exits or grows, in each place where it is called."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from custom_rewards import opened, problems
from forked import wait_until
from runs import finish, program

from rlobj.conversations import EnvironmentSettings, ToolPool
from rlobj.conversations.named import NamedEnvironments
from rlobj.data import Problem
from rlobj.rewards import Custom
from rlobj.workers.worker import NoReply

FILE = '''
import asyncio, ctypes, os, re, sys
from rlobj import Turn, from_trl

def misbehave(how):
    if how == "raises":
        return 1 / 0
    if how == "stops":
        raise StopIteration
    if how == "quits":
        sys.exit(4)
    if how == "hangs":
        re.match("(a+)+$", "a" * 60 + "b")
    if how == "exits":
        os._exit(3)
    if how == "segfaults":
        ctypes.string_at(0)
    return len(bytearray(8 << 30)) if how == "grows" else 1

def reward(response, answer):
    return misbehave(response)

async def later(response, answer):
    await asyncio.sleep(100 if response == "waits" else 0)
    return misbehave(response)

def tool(how: str) -> int:
    """Misbehave.

    Args:
        how: In which way.
    """
    return misbehave(how)

async def tool_later(how: str) -> int:
    """Misbehave.

    Args:
        how: In which way.
    """
    return await later(how, "")

class Own:
    def reset(self, problem): ...

    def step(self, messages):
        return Turn(reward=misbehave(messages[-1]["content"]))

class Later(Own):
    async def step(self, messages):
        return Turn(reward=await later(messages[-1]["content"], ""))

class OfTrl:
    def reset(self, answer, **columns):
        self.how = answer

    def get_reward(self):
        return misbehave(self.how)

of_trl = from_trl(OfTrl)
'''


def graded(grader: Any, how: str, caplog: Any) -> tuple[str, str]:
    """What became of a call, in the words of a tool, and the message."""
    with grader:
        bad, sound = grader.score([how, "sound"], problems("x", "x"))
    assert sound.reward == 1
    return bad.reason.replace("error", "exception"), caplog.text


def answered(pool: Any, name: str, how: str) -> tuple[str, str]:
    async def both() -> Any:
        return [await pool.call(name, {"how": each}) for each in (how, "sound")]

    with pool:
        (text, bad), (told, sound) = asyncio.run(both())
    assert (told, sound.error) == ("1", "")
    return bad.error, bad.error + text


def stepped(target: str, how: str) -> tuple[str, str]:
    """What became of the only turn of a conversation, beside one that goes on."""

    async def both(made: NamedEnvironments) -> Any:
        hows = how, "sound"
        held = [made() for _ in hows]
        for one, word in zip(held, hows, strict=True):
            await one.reset(Problem("1", "?", word))
        asked = [one.step([{"content": word}]) for one, word in zip(held, hows, strict=True)]
        return await asyncio.gather(*asked, return_exceptions=True)

    settings = EnvironmentSettings(target=target, deadline=1, memory_mb=2048)
    with closing(NamedEnvironments(target, settings, lambda problem: problem.prompt)) as made:
        bad, sound = asyncio.run(both(made))
    assert sound.reward == 1
    assert isinstance(bad, NoReply)
    return bad.reason.replace("error", "exception"), str(bad)


MISBEHAVIOUR = {
    "raises": ("exception", "mine.py, line 7: return 1 / 0"),
    "quits": ("exception", "SystemExit: 4"),
    "stops": ("exception", "StopIteration"),
    "waits": ("timeout", "within 1 seconds"),
    "hangs": ("timeout", "within 1 seconds"),
    "exits": ("crash", "ended its process"),
    "segfaults": ("crash", "ended its process"),
    "grows": ("exception", "mine.py, line 18: return len(bytearray("),
}
OF_THE_CALL, OF_THE_PROCESS = ("raises", "quits", "stops"), ("hangs", "exits", "segfaults", "grows")
PLACES = {
    "named reward": (*OF_THE_CALL, *OF_THE_PROCESS),
    "named async reward": ("raises", "waits", "hangs", "exits"),
    "named tool": (*OF_THE_CALL, *OF_THE_PROCESS),
    "named environment": (*OF_THE_CALL, *OF_THE_PROCESS),
    "named async environment": ("raises", "waits", "hangs", "exits"),
    "named environment of TRL": ("raises", "hangs"),
    "passed reward": OF_THE_CALL,
    "passed async reward": (*OF_THE_CALL, "waits"),
    "passed tool": OF_THE_CALL,
    "passed async tool": (*OF_THE_CALL, "waits"),
}


@pytest.mark.parametrize(
    ("place", "how"), [(place, how) for place, hows in PLACES.items() for how in hows]
)
def test_a_call_that_misbehaves_is_told_and_the_next_one_succeeds(place, how, tmp_path, caplog):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    functions: dict[str, Any] = {}
    exec(compile(FILE, file, "exec"), functions)
    reward, tool = ("later", "tool_later") if "async" in place else ("reward", "tool")
    if "environment" in place:
        name = "of_trl" if "TRL" in place else "Later" if "async" in place else "Own"
        kind, message = stepped(f"{file}:{name}", how)
    elif place.endswith("tool"):
        called = f"{file}:{tool}" if "named" in place else functions[tool]
        pool = ToolPool(EnvironmentSettings(deadline=1), [called])
        kind, message = answered(pool, tool, how)
    elif "named" in place:
        grader = Custom(target=f"{file}:{reward}", deadline=1, memory_gib=4).open()
        kind, message = graded(grader, how, caplog)
    else:
        kind, message = graded(opened(functions[reward], deadline=1), how, caplog)
    expected, text = MISBEHAVIOUR[how]
    assert kind.startswith(expected)
    assert text in message


SPINS = """
import os

class Spins:
    def reset(self, problem): ...

    def step(self, messages):
        open(os.environ["BEGUN"], "w").close()
        while True:
            pass
"""


@pytest.mark.slow
def test_a_second_signal_ends_a_run_whose_environment_hangs(tmp_path: Path):
    (tmp_path / "own.py").write_text(SPINS)
    words: list[Any] = ["train", "--preset", "grpo", "--data", "addition"]
    words += ["--environment", f"{tmp_path}/own.py:Spins", "--out", tmp_path / "run"]
    words += ["--set", "evaluation.every=0", "--set", "environment.deadline=1000"]
    log, begun = tmp_path / "log", tmp_path / "begun"
    process = program(words, log, BEGUN=str(begun))
    try:
        wait_until(begun.exists, 300, process, log)
        os.kill(process.pid, signal.SIGTERM)
        wait_until(lambda: "a second signal stops at once" in log.read_text(), 300, process, log)
        time.sleep(1.5)  # until then it is an echo of the first one
        os.kill(process.pid, signal.SIGTERM)
    finally:
        finish(process, log, 128 + signal.SIGTERM)
