"""User code that raises, hangs, exits or grows, in each place where it is called."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from custom_rewards import opened, problems
from forked import wait_until
from runs import finish, program

from rlobj.conversations import EnvironmentSettings, ToolPool
from rlobj.rewards import Custom

FILE = '''
import asyncio, ctypes, os, re, sys

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
        bad, sound = asyncio.run(both())
    assert (sound.text, sound.error) == ("1", "")
    return bad.error, bad.error + bad.text


MISBEHAVIOUR = {
    "raises": ("exception: ZeroDivisionError", "mine.py, line 6: return 1 / 0"),
    "quits": ("exception: SystemExit", "SystemExit: 4"),
    "stops": ("exception: ", "StopIteration"),
    "waits": ("timeout", "within 1 seconds"),
    "hangs": ("timeout", "within 1 seconds"),
    "exits": ("crash", "ended its process with the exit status 3"),
    "segfaults": ("crash", "ended its process with SIGSEGV"),
    "grows": ("exception: MemoryError", "mine.py, line 17: return len(bytearray("),
}
OF_THE_CALL, OF_THE_PROCESS = ("raises", "quits", "stops"), ("hangs", "exits", "segfaults", "grows")
PLACES = {
    "named reward": (*OF_THE_CALL, *OF_THE_PROCESS),
    "named async reward": ("raises", "waits", "hangs", "exits"),
    "named tool": (*OF_THE_CALL, *OF_THE_PROCESS),
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
    if place.endswith("tool"):
        names = (f"{file}:{tool}",) if "named" in place else ()
        pool = ToolPool(
            EnvironmentSettings(tools=names, deadline=1), [] if names else [functions[tool]]
        )
        kind, message = answered(pool, tool, how)
    elif "named" in place:
        grader = Custom(target=f"{file}:{reward}", deadline=1, memory_gib=4).open()
        kind, message = graded(grader, how, caplog)
    else:
        kind, message = graded(opened(functions[reward], deadline=1), how, caplog)
    expected, text = MISBEHAVIOUR[how]
    assert kind.startswith(expected)
    assert text in message


ENVIRONMENTS = """
import os, time

class Own:
    def reset(self, problem): ...

class Spins(Own):
    def step(self, messages):
        open(os.environ["BEGUN"], "w").close()
        while True:
            pass

class Blocks(Own):
    async def step(self, messages):
        open(os.environ["BEGUN"], "w").close()
        time.sleep(1e9)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("Spins", signal.SIGTERM), ("Blocks", signal.SIGINT)])
def test_a_second_signal_ends_a_run_whose_environment_hangs(name, number, tmp_path: Path):
    (tmp_path / "own.py").write_text(ENVIRONMENTS)
    words: list[Any] = ["train", "--preset", "grpo", "--task", "addition"]
    words += ["--environment", f"{tmp_path}/own.py:{name}", "--out", tmp_path / "run"]
    words += ["--set", "evaluation.every=0"]
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
