"""Functions of users as rewards that hang or are `async`: deadlines, event loops, and signals."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from custom_rewards import forever, graded, opened, problems, reasons
from forked import wait_until
from runs import program
from screens import shows

from rlobj.base.errors import RunError
from rlobj.rewards.calls import Calls, InThread

CALL = ["p"], ["quick"], ["x"], {}, None

# Time limits.


HANG = {
    "sleep": lambda: time.sleep(1000),
    "loop": lambda: forever(20),
    "lock": threading.Event().wait,
}


@pytest.mark.parametrize("kind", HANG)
def test_a_call_that_hangs_is_undecided_at_the_deadline_and_the_others_are_graded(kind, caplog):
    def score(response, answer):
        if response == "hang":
            HANG[kind]()
        return len(response)

    grades = graded(score, ["a", "hang", "bc"], deadline=1.5)
    assert [each.undecided for each in grades] == [False, True, False]
    assert [grades[0].reward, grades[2].reward] == [1, 2]
    assert math.isnan(grades[1].reward)
    assert reasons(grades)[1] == "timeout"
    assert "did not return within 1.5 seconds on problem 'p1'" in caplog.text
    assert "test_custom_deadlines.py, line" in caplog.text  # where it hangs
    assert "'hang'" in caplog.text


def test_a_late_result_reaches_no_response():
    later, late = threading.Event(), threading.Event()

    def score(response, answer):
        if response == "slow":
            later.wait(60)
            late.set()
            return 100
        later.set()
        assert late.wait(60)  # it returns while a later call runs
        return 1

    grades = graded(score, ["slow", "b", "c"], deadline=2)
    assert reasons(grades) == ["timeout", "custom", "custom"]
    assert [each.reward for each in grades[1:]] == [1, 1]


async def waits(response, answer):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("function", "deadlines"),
    [(lambda response, answer: time.sleep(20), 11), (waits, 1)],
)
def test_calls_that_hang_are_failures_and_end_the_run_at_the_limit(function, deadlines):
    """Calls that wait hang at the same time; the others hang one after another."""
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        graded(function, ["a"] * 99, deadline=0.15, concurrency=11)
    assert 0.15 * deadlines <= time.monotonic() - start
    assert "11 of the last 11 calls failed; rewards.max_failures is 10." in str(caught.value)
    assert "did not return within 0.15 seconds on problem 'p10'\n  at " in str(caught.value)


def test_no_call_is_made_after_the_failure_that_ends_the_run():
    made = []

    def score(response, answer):
        made.append(response)
        return 1 / (response != "bad")

    with pytest.raises(RunError, match="ZeroDivisionError"):
        graded(score, ["a", "bad", "b", "c"], max_failures=0)
    assert made == ["a", "bad"]


def test_results_come_while_later_calls_run():
    release = threading.Event()

    def score(response, answer):
        return 1.0 if response == "quick" else float(release.wait(300))

    calls = Calls(partial(InThread, score, "f"), deadline=400.0)
    outcomes = calls.outcomes([CALL, (["p"], ["slow"], ["x"], {}, None)], allowed=0)
    assert next(outcomes).grades == [(1.0, None, {}, "")]
    assert not release.is_set()
    release.set()
    assert next(outcomes).grades == [(1.0, None, {}, "")]
    outcomes.close()
    calls.close()


# Asynchronous functions.


def test_async_calls_run_at_the_same_time_up_to_a_limit():
    running = most = 0
    full = asyncio.Event()

    async def score(response, answer):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 7:
            full.set()
        await full.wait()
        await asyncio.sleep(0.05)  # an eighth would begin
        running -= 1
        return int(response)

    responses = [str(i) for i in range(20)]
    grades = graded(score, responses, concurrency=7)
    assert [each.reward for each in grades] == list(range(20))
    assert most == 7


def test_async_functions_keep_one_event_loop_and_each_call_has_its_deadline():
    loops, tasks = set(), []

    class Judge:
        async def __call__(self, response, answer):
            loops.add(asyncio.get_running_loop())
            tasks.append(asyncio.current_task())
            if response == "hang":
                await asyncio.Event().wait()
            if response == "bad":
                raise ValueError("no")
            await asyncio.sleep(0.05)
            return 1

    with opened(Judge(), deadline=2) as grader:
        for _ in range(2):
            grades = grader.score(["a", "hang", "bad", "b"], problems(*"xxxx"))
            assert reasons(grades) == ["custom", "timeout", "error: ValueError", "custom"]
        wait_until(lambda: all(task.done() for task in tasks))  # what awaits is cancelled
    assert len(loops) == 1


def test_a_call_that_blocks_the_loop_is_one_failure_of_all_that_wait_there_and_a_new_loop_goes_on():
    async def score(response, answer):
        await asyncio.sleep(0.01)
        if response == "hang":
            time.sleep(20)
        await asyncio.sleep(0.1)
        return 1

    with opened(score, deadline=2, concurrency=3, max_failures=1) as grader:
        grades = grader.score(["a", "hang", "b", "c"], problems(*"xxxx"))
        assert reasons(grades) == ["timeout", "timeout", "timeout", "custom"]
        assert reasons(grader.score(["a", "b"], problems("x", "x"))) == ["custom"] * 2


def test_the_message_on_an_async_call_shows_the_line_that_awaits(caplog):
    async def inner():
        await asyncio.Event().wait()  # here

    async def score(response, answer):
        await inner()

    graded(score, ["a"], deadline=0.1)
    assert "await asyncio.Event().wait()  # here" in caplog.text


# The program.

HANGING = """
import os, time

def score(response, answer, **columns):
    if response != answer:
        again = os.path.exists("hangs")
        open("hangs", "w").close()
        {hang}
    return 1
"""


def started(folder: Path, hang: str, *more: str) -> tuple[Any, Path]:
    """A run whose reward hangs in a call, and its log."""
    (folder / "mine.py").write_text(HANGING.format(hang=hang))
    quick = ["--set", "training.steps=2", "--set", "evaluation.every=0", "--task", "addition"]
    words = ["train", "--preset", "grpo", *quick, "--reward", f"{folder}/mine.py:score", *more]
    log = folder / "log"
    process = program([*words, "--out", folder / "run"], log)
    wait_until((folder / "hangs").exists, 300, process, log)
    return process, log


@pytest.mark.slow
def test_a_second_signal_ends_a_run_whose_reward_hangs_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    process, log = started(tmp_path, "while True: pass")
    process.send_signal(signal.SIGINT)
    wait_until(lambda: shows("finishing and saving", log.read_text()), 300, process, log)
    time.sleep(1.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 128 + signal.SIGINT, log.read_text()


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_reward_hangs_after_its_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hang = "again or time.sleep(1000)"
    process, log = started(tmp_path, hang, "--set", "rewards.deadline=3")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0, log.read_text()
    assert shows("did not return within 3 seconds", log.read_text())
    assert (tmp_path / "run" / "checkpoints" / "step-000001").is_dir()


def test_the_process_ends_although_calls_hang():
    code = """
import asyncio, time
from rlobj.data import Problem
from rlobj.rewards import Custom, function_grader

async def blocking(response, answer): await asyncio.to_thread(time.sleep, 1000)
async def spinning(response, answer):
    while True: pass
def plain(response, answer): time.sleep(1000)
def stubborn(response, answer):
    while True:
        try:
            while True: pass
        except BaseException: pass

for function in (blocking, spinning, plain, stubborn):
    with function_grader(function, "f", Custom(target="f", deadline=0.2)) as grader:
        [grade] = grader.score(["a"], [Problem("p", "?", "x")])
        print(grade.reason)
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout.split(), done.returncode) == (["timeout"] * 4, 0), done.stderr


@pytest.mark.slow
def test_a_process_whose_call_keeps_the_lock_of_python_shows_the_line(tmp_path):
    """A regular expression with catastrophic backtracking; no thread sees time or signals."""
    body = "return re.match('(a+)+$', 'a' * 60 + 'b')"
    (tmp_path / "mine.py").write_text(f"import re\ndef score(r, a):\n    {body}\n")
    code = """
import mine
from rlobj.data import Problem
from rlobj.rewards import Custom, calls, function_grader
calls._STANDSTILL = 0.5
with function_grader(mine.score, "f", Custom(target="f", deadline=4.5)) as grader:
    grader.score(["a"], [Problem("p", "?", "x")])
"""
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-c", code], stderr=stderr, cwd=tmp_path)
    try:
        wait_until(lambda: 'mine.py", line 3 in score' in log.read_text(), log=log)
        assert "Timeout (0:00:05)!" in log.read_text()
        time.sleep(0.3)
        assert process.poll() is None  # a process that was only paused would go on
    finally:
        process.kill()
        process.wait()
