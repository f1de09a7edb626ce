"""A supervised process: whatever its code does, a question gets an answer, or an error in time."""

from __future__ import annotations

import math
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import alive, wait_until

from rlobj.base.errors import ConfigError
from rlobj.workers import worker as module
from rlobj.workers.judge import Judge
from rlobj.workers.worker import Worker

ENDED = "ended its process"
WROTE = "wrote to the connection of its process"


@pytest.fixture
def odd():
    worker = Worker("odd_worker:Odd", own_folder=True)
    worker.ready()
    yield worker
    worker.kill()


@pytest.mark.parametrize(
    ("question", "reply"),
    [
        (("echo", {"a": [1, None, "é"]}), {"a": [1, None, "é"]}),
        (("echo", math.inf), math.inf),
        (("prints",), "printed"),
        (("close_others",), "closed"),
        (("children_that_end",), [-15, -15]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_question_gets_its_reply_and_so_does_the_next(odd, question, reply, capfd):
    assert odd.opening == "odd"
    assert odd.ask(*question) == reply
    assert odd.ask("echo", 1) == 1
    assert capfd.readouterr() == ("", "")


def test_a_fork_that_returns_ends(odd):
    fork = odd.ask("fork")
    wait_until(lambda: not alive(fork), 60)
    assert odd.ask("echo", 1) == 1


def test_long_questions_and_replies_are_whole(odd):
    assert odd.ask("echo", "x" * 10_000_000) == "x" * 10_000_000


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (("raises",), ENDED),
        (("exit",), f"{ENDED} with the exit status 3"),
        (("exit_with_child",), f"{ENDED} with the exit status 3"),
        (("segfault",), f"{ENDED} with SIGSEGV"),
        (("write", '["", "reply", 7]\n'), WROTE),
        (("write", "[" * 100_000 + "\n"), WROTE),
        (("flood",), WROTE),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_process_that_ends_or_writes_what_is_no_reply_is_replaced(
    odd, question, text, monkeypatch
):
    monkeypatch.setattr(module, "_LARGEST", 1 << 20)
    before = odd.pid
    with pytest.raises(EOFError, match=text):
        odd.ask(*question)
    assert not alive(before)
    odd.ready()
    assert odd.ask("echo", 1) == 1
    assert odd.pid != before


@pytest.mark.parametrize("how", ["pattern", "flood"])
def test_a_question_ends_at_its_deadline(odd, how, monkeypatch):
    monkeypatch.setattr(module, "_LARGEST", math.inf)
    with pytest.raises(TimeoutError, match=re.escape("did not answer within 0.3 seconds")):
        odd.ask(how, seconds=0.3)
    assert odd.process is None


def test_what_is_written_after_a_reply_is_none_to_the_next_question(odd):
    assert odd.ask("write_later") == "later"
    time.sleep(0.5)
    assert not odd.quiet()
    odd.ready()
    assert odd.quiet()
    assert odd.ask("echo", 1) == 1


def test_a_deadline_ends_all_that_a_question_started(odd, tmp_path):
    note = tmp_path / "note"
    odd.send("leave", note)
    wait_until(note.exists, 60)
    process, child, file = note.read_text().split()
    assert alive(int(child))
    assert Path(file).exists()
    odd.kill()
    wait_until(lambda: not alive(int(process)) and not alive(int(child)), 60)
    assert not Path(file).exists()


def test_a_polite_end_ends_what_was_detached_too(odd):
    detached = odd.ask("detach")
    assert alive(detached)
    odd.kill(patience=60)
    wait_until(lambda: not alive(detached), 60)


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


def test_an_answer_that_was_not_asked_for_is_not_that_to_the_next_question():
    judge = Judge("rlobj.answers.worker:Comparer", 10.0, 2**32, 1000)
    try:
        assert judge.reply("2", "2") == (True, "numeric")
        judge.send("1", "1")
        assert judge.reply("2", "3") == (None, "crash")
        assert judge.reply("2", "3")[0] is False
    finally:
        judge.kill()


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
print(asyncio.run(opened.call("process", {})).text, flush=True)
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


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of `Popen`
def test_a_worker_that_nobody_holds_any_more_ends():
    worker = Worker("odd_worker:Odd")
    worker.ready()
    number = worker.pid
    assert number is not None
    del worker
    wait_until(lambda: not alive(number), 60)
