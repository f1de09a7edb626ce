"""A worker process: whatever its code does, a question gets an answer, or an error in time."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import alive, wait_until

from rlobj.base.errors import ConfigError, RunError
from rlobj.workers import worker as module
from rlobj.workers.pool import Failures, Pool
from rlobj.workers.worker import NoReply, Worker

ENDED = "ended its process"


@pytest.fixture
def odd():
    worker = Worker("odd_worker:Odd")
    worker.ready()
    yield worker
    worker.kill()


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (("echo", {"a": [1, None, "é"]}), {"a": [1, None, "é"]}),
        (("echo", math.inf), math.inf),
        (("echo", "x" * 10_000_000), "x" * 10_000_000),
        (("prints",), "printed"),
        (("children_that_end",), -15),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_question_gets_its_reply_and_so_does_the_next(odd, question, reply, capfd):
    assert odd.opening == "odd"
    assert odd.ask(*question) == reply
    assert odd.ask("echo", 1) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("question", "reason", "text"),
    [
        (("exit",), "crash", f"{ENDED} with the exit status 3"),
        (("exit_with_child",), "crash", f"{ENDED} with the exit status 3"),
        (("segfault",), "crash", f"{ENDED} with SIGSEGV"),
        (("pattern",), "timeout", "did not answer within 0.7 seconds"),
        (("stop",), "timeout", "did not answer within 0.7 seconds"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_process_that_gives_no_reply_is_replaced(odd, question, reason, text):
    before = odd.pid
    with pytest.raises(NoReply, match=re.escape(text)) as caught:
        odd.ask(*question, seconds=60 if reason == "crash" else 0.7)
    assert caught.value.reason == reason
    assert not alive(before)
    assert odd.ask("echo", 1) == 1
    assert odd.pid != before


def test_a_deadline_ends_all_that_a_question_started(odd, tmp_path):
    note = tmp_path / "note"
    with pytest.raises(NoReply):
        odd.ask("leave", note, seconds=5)
    process, child, file = note.read_text().split()
    wait_until(lambda: not alive(int(process)) and not alive(int(child)), 60)
    assert not Path(file).exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("odd_worker:Unmade", "ValueError: no such thing"),
        ("odd_worker:Absent", "AttributeError"),
        ("nowhere:Odd", "No module named 'nowhere'"),
    ],
)
def test_what_cannot_be_made_is_told(target, message):
    worker = Worker(target)
    with pytest.raises(ConfigError, match=message):
        worker.ready()
    assert worker.process is None


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of `Popen`
def test_a_worker_that_nobody_holds_any_more_ends():
    worker = Worker("odd_worker:Odd")
    worker.ready()
    number = worker.pid
    assert number is not None
    del worker
    wait_until(lambda: not alive(number), 60)


def test_a_pool_that_is_closed_starts_no_process():
    pool = Pool(2, "odd_worker:Odd")
    numbers = pool.map(lambda worker, value: worker.ask("echo", value), [*range(5)])
    assert numbers == [*range(5)]
    pool.close()
    with pytest.raises(RunError, match="are closed"), pool.worker() as worker:
        worker.ask("echo", 1, seconds=60)


def test_old_failures_are_forgotten(monkeypatch):
    monkeypatch.setattr("rlobj.workers.pool.RECENT", 5)
    rare, often = Failures("x.max_failures", 1), Failures("x.max_failures", 1)
    for _ in range(6):
        for message in ("bad", *[""] * 5):
            rare.add(message)
    often.add("bad")
    with pytest.raises(RunError, match=r"2 of the last 2 calls failed; x\.max_failures is 1\."):
        often.add("bad")


# Who is at fault when there is no reply: the answer, its gold answer, or the machine.

SOUND = "echo", [1, "sound"]


@pytest.fixture
def judge():
    worker = Worker("odd_worker:Odd", processor_seconds=0.3, memory=2**32, recycle_after=4)
    yield worker
    worker.kill()


@pytest.mark.parametrize(
    ("how", "reason", "tries"),
    [
        ("spin", "timeout", 1),  # no other process can take its processor time
        ("hang", "timeout", 2),
        ("exit", "crash", 2),
        ("memory", "memory", 2),
        ("raises", "error: KeyError", 1),
    ],
)
def test_an_answer_that_fails_beside_a_sound_gold_is_wrong(
    judge, how, reason, tries, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "clock_seconds", lambda deadline: -29.0 if how == "hang" else 60.0)
    note = tmp_path / "note"
    assert judge.judge(("noted", note, how), SOUND) == (False, reason)
    assert len(note.read_text()) == tries
    assert judge.reply(*SOUND) == (1, "sound", False)


@pytest.mark.parametrize("how", ["hang", "exit", "stop"])
def test_a_fault_of_the_machine_is_tried_again(judge, how, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "clock_seconds", lambda deadline: -29.0)
    judge.ready()
    before, note = judge.pid, tmp_path / "note"
    assert judge.judge(("once", note, how), SOUND) == (2, "again")
    assert judge.pid != before


@pytest.mark.parametrize(("how", "reason"), [("exit", "crash"), ("spin", "timeout")])
def test_a_gold_that_fails_too_leaves_the_answer_undecided(judge, how, reason):
    assert judge.judge((how,), (how,)) == (None, f"gold {reason}")


def test_a_process_that_is_killed_or_has_answered_enough_is_replaced(judge):
    numbers = []
    for turn in range(6):
        judge.ready()
        numbers.append(judge.pid)
        assert judge.reply(*SOUND) == (1, "sound", False)
        if turn == 0:
            os.kill(judge.pid, signal.SIGKILL)
            os.waitid(os.P_PID, judge.pid, os.WEXITED | os.WNOWAIT)
    assert len({*numbers}) == 3  # the last one, after four questions


def test_a_package_that_cannot_be_loaded_or_a_process_that_does_not_start_is_an_error(judge):
    with pytest.raises(ConfigError, match="ModuleNotFoundError: No module"):
        judge.reply("imports")
    with pytest.raises(RunError, match="ended its process with the exit status 1 at its start"):
        Worker("odd_worker:Dies", processor_seconds=1.0).reply()


# All who use one.


STARTS = {
    "answers": """
from rlobj.answers import MathVerifier
opened = MathVerifier().__enter__()
opened.verify(r"\\boxed{1+\\sqrt{2}}", r"\\sqrt{2}+1")
print(*opened.process_ids, flush=True)
""",
    "rewards": """
from rlobj.data import Problem
from rlobj.rewards import Custom
opened = Custom(target=f"{FILE}:process").open()
print(int(opened.score(["a"], [Problem("p", "?", "x")])[0].reward), flush=True)
""",
    "conversations": """
import asyncio
from rlobj.conversations import EnvironmentSettings, ToolPool
opened = ToolPool(EnvironmentSettings(tools=(f"{FILE}:process",)))
print(asyncio.run(opened.call("process", {}))[0], flush=True)
""",
}
BUSY = {
    "answers": 'opened.verify(r"\\boxed{\\int_0^1 e^{-x^2} \\sin(\\cos(\\tan(x^3)))dx}", "5")',
    "rewards": 'opened.score(["hang"], [Problem("p", "?", "x")])',
    "conversations": 'asyncio.run(opened.call("process", {"hangs": True}))',
}
FUNCTION = """
import os, re

def process(response="", answer="", hangs=False):
    if hangs or response == "hang":
        re.match("(a+)+$", "a" * 60 + "b")
    return os.getpid()
"""


@pytest.mark.parametrize("user", STARTS)
@pytest.mark.parametrize("end", ["SIGKILL", "SIGINT", "_exit"])
def test_no_process_outlives_a_program_that_is_interrupted(user, end, tmp_path):
    """In the middle of a question; also without a main guard, and nothing is run twice."""
    file = tmp_path / "mine.py"
    file.write_text(FUNCTION)
    last = "import os; os._exit(0)" if end == "_exit" else BUSY[user]
    script = tmp_path / "script.py"
    script.write_text(f"FILE = {str(file)!r}\n{STARTS[user]}\n{last}\n")
    words = [sys.executable, str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as program:
        assert program.stdout is not None
        process = int(program.stdout.readline())
        if end != "_exit":
            assert alive(process)
            time.sleep(0.5)
            program.send_signal(getattr(signal, end))
        assert program.stdout.read() == b""
    wait_until(lambda: not alive(process), 60)
