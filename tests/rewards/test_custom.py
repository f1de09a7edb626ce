"""Functions of users as rewards: they fail, hang, print, end the program, or are `async`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forked import wait_until
from runs import program

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.data import Problem
from rlobj.rewards import Custom, Graded, Grader, function_grader


def problems(*answers: str, **extra: Any) -> list[Problem]:
    return [Problem(f"p{i}", "?", each, dict(extra)) for i, each in enumerate(answers)]


def opened(function: Any, **settings: Any) -> Grader:
    return function_grader(function, "mine", Custom(target="mine", **settings))


def graded(function: Any, responses: list[str], **settings: Any) -> list[Graded]:
    with opened(function, **settings) as grader:
        return grader.score(responses, problems(*"x" * len(responses)))


def reasons(grades: list[Graded]) -> list[str]:
    return [each.reason for each in grades]


# Time limits.


def forever(seconds: float = 1000) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


HANG = {"sleep": lambda: time.sleep(1000), "loop": forever, "lock": threading.Event().wait}


@pytest.mark.parametrize("kind", HANG)
def test_a_call_that_hangs_is_undecided_at_the_deadline_and_the_others_are_graded(kind, caplog):
    def score(response, answer):
        if response == "hang":
            HANG[kind]()
        return len(response)

    start = time.monotonic()
    grades = graded(score, ["a", "hang", "bc"], deadline=0.3)
    assert time.monotonic() - start < 5
    assert [each.correct for each in grades] == [True, None, True]
    assert [grades[0].reward, grades[2].reward] == [1, 2]
    assert math.isnan(grades[1].reward)
    assert reasons(grades)[1] == "timeout"
    assert "did not return within 0.3 seconds on problem 'p1'" in caplog.text
    assert "test_custom.py, line" in caplog.text  # where it hangs
    assert "'hang'" in caplog.text


def test_a_late_result_reaches_no_response():
    finished = []

    def score(response, answer):
        if response == "slow":
            with contextlib.suppress(BaseException):
                time.sleep(0.5)
            finished.append(response)
            return 100
        time.sleep(0.15)
        return 1

    grades = graded(score, ["slow", "b", "c", "d", "e", "f"], deadline=0.3)
    assert finished == ["slow"]
    assert [each.reward for each in grades[1:]] == [1] * 5
    assert reasons(grades)[0] == "timeout"


def test_a_loop_that_hangs_is_ended_and_a_call_that_waits_ends_by_itself():
    used = {}

    def score(response, answer):
        used[response] = threading.current_thread()
        forever() if response == "loop" else time.sleep(2)

    with opened(score, deadline=0.2) as grader:
        grader.score(["loop", "sleep"], problems("x", "x"))
        time.sleep(0.3)
        assert [used[each].is_alive() for each in ("loop", "sleep")] == [False, True]
        time.sleep(2)
        assert not used["sleep"].is_alive()


async def waits(response, answer):
    await asyncio.Event().wait()


async def blocks(response, answer):
    time.sleep(20)


@pytest.mark.parametrize(
    ("function", "deadlines"),
    [(lambda response, answer: time.sleep(20), 11), (blocks, 11), (waits, 1)],
)
def test_calls_that_hang_are_failures_and_end_the_run_at_the_limit(function, deadlines):
    """Calls that wait hang at the same time; the others hang one after another."""
    start = time.monotonic()
    with pytest.raises(RunError) as caught:
        graded(function, ["a"] * 99, deadline=0.15, concurrency=11)
    assert 0.15 * deadlines <= time.monotonic() - start < 0.3 * deadlines + 5
    assert "11 of the last 11 calls failed; rewards.max_failures is 10." in str(caught.value)
    assert "did not return within 0.15 seconds on problem 'p10'\n  at " in str(caught.value)


def test_timeouts_and_exceptions_count_together():
    def score(response, answer):
        return 1 / 0 if response == "bad" else time.sleep(20)

    with pytest.raises(RunError, match="3 of the last 3 calls failed"):
        graded(score, ["bad", "hang", "bad"], deadline=0.1, max_failures=2)


def test_all_calls_use_one_thread():
    seen = []
    with opened(lambda response, answer: seen.append(threading.get_ident())) as grader:
        for _ in range(3):
            grader.score(["a", "b"], problems("x", "x"))
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()


def test_the_thread_of_a_closed_grader_ends():
    with opened(lambda response, answer: 1) as grader:
        grader.score(["a"], problems("x"))
        thread = grader._calls._worker
    thread.join(5)
    assert not thread.is_alive()


# Objects of the user: their methods fail or hang as the function may.


class Methods:
    """An object whose methods do what the test chooses."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def answer(self, *_: Any) -> Any:
        return self.method()

    __str__ = __repr__ = __len__ = __iter__ = __getitem__ = __float__ = answer


class Rude(Methods, Exception):
    pass


class RudeList(Methods, list):
    pass


def fail() -> None:
    raise OSError("the server is gone")


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_exception_whose_text_cannot_be_made_is_told_by_its_kind(kind, caplog):
    def plain(response, answer):
        raise Rude(fail)

    async def asynchronous(response, answer):
        raise Rude(fail)

    assert reasons(graded({"plain": plain, "async": asynchronous}[kind], ["a"])) == ["error: Rude"]
    assert "failed on problem 'p0': Rude: <unprintable Rude>" in caplog.text
    assert "line" in caplog.text
    assert "raise Rude(fail)" in caplog.text


@pytest.mark.parametrize("what", ["text", "number", "items", "size"])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_object_that_hangs_when_it_is_read_is_undecided_at_the_deadline(what, kind):
    def plain(response, answer):
        if what == "text":
            raise Rude(forever)
        return (Rude if what == "number" else RudeList)(forever)

    async def asynchronous(response, answer):
        return plain(response, answer)

    function = {"plain": plain, "async": asynchronous}[kind]
    start = time.monotonic()
    settings = {"deadline": 0.2, "batched": what in ("items", "size")}
    assert reasons(graded(function, ["a"], **settings)) == ["timeout"]
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("batched", [False, True])
def test_a_result_that_fails_when_it_is_read_is_an_exception_of_the_call(batched, caplog):
    made = RudeList if batched else Rude
    grades = graded(lambda response, answer: made(fail), ["a"], batched=batched)
    assert reasons(grades) == ["error: OSError"]
    assert "the server is gone" in caplog.text


def test_a_wrong_result_without_a_text_is_told_by_its_kind():
    class Quiet:
        def __repr__(self):
            fail()
            return ""

    with pytest.raises(RunError, match="returned <unprintable Quiet> on problem 'p0'"):
        graded(lambda response, answer: Quiet(), ["a"])
    with pytest.raises(RunError, match="returned <unprintable Quiet> for 1 response"):
        graded(lambda response, answer: Quiet(), ["a"], batched=True)


def test_long_texts_are_cut(caplog):
    page = "x" * 10**6

    def score(response, answer):
        raise ValueError(page)

    with pytest.raises(RunError) as caught:
        graded(score, [page, page], max_failures=1)
    with pytest.raises(RunError) as returned:
        graded(lambda response, answer: page, [page])
    for text in (caplog.text, str(caught.value), str(returned.value)):
        assert "xxx..." in text
        assert len(text) < 1500


# Exceptions.


def test_exceptions_are_undecided_up_to_a_limit_and_the_message_shows_line_and_response(
    tmp_path, caplog
):
    file = tmp_path / "mine.py"
    file.write_text("def score(response, answer):\n    return 1 / len(response.strip())\n")
    with Custom(target=f"{file}:score", max_failures=2).open() as grader:
        grades = grader.score(["a", " ", "b", "  "], problems(*"xxxx"))
        assert reasons(grades) == ["custom", "error: ZeroDivisionError"] * 2
        assert len(caplog.records) == 1
        assert f"{file}, line 2: return 1 / len(response.strip())" in caplog.text
        assert "response: ' '" in caplog.text
        with pytest.raises(RunError) as caught:
            grader.score([" " * 1000], problems("x"))
    text = str(caught.value)
    assert "failed on problem 'p0': ZeroDivisionError: division by zero" in text
    assert f"{file}, line 2: return 1 / len(response.strip())" in text
    assert "3 of the last 5 calls failed; rewards.max_failures is 2" in text
    assert len(text) < 1000
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_old_failures_are_forgotten(monkeypatch):
    monkeypatch.setattr("rlobj.rewards.custom.RECENT", 5)

    def score(response, answer):
        return 1 / int(response)

    rare = ["0", *"11111"] * 6
    assert sum(each.correct is None for each in graded(score, rare, max_failures=1)) == 6
    with pytest.raises(RunError, match="2 of the last 2 calls failed"):
        graded(score, ["0", "0"], max_failures=1)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, StopIteration, GeneratorExit])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_exception_that_ends_programs_is_one_like_any_other(error, kind):
    def plain(response, answer):
        if response == "bad":
            raise error("done")
        return 1

    async def asynchronous(response, answer):
        return plain(response, answer)

    function = {"plain": plain, "async": asynchronous}[kind]
    grades = graded(function, ["a", "bad", "b"])
    assert [each.correct for each in grades] == [True, None, True]
    name = "RuntimeError" if (error, kind) == (StopIteration, "async") else error.__name__
    assert reasons(grades)[1] == f"error: {name}"
    with pytest.raises(RunError, match=name):
        graded(function, ["bad"], max_failures=0)


def test_a_timeout_error_of_the_function_is_no_time_limit():
    def score(response, answer):
        raise TimeoutError("the server is slow")

    assert reasons(graded(score, ["a"])) == ["error: TimeoutError"]


def test_what_a_function_prints_is_printed(capsys):
    graded(lambda response, answer: print("seen", response), ["a"])
    assert "seen a" in capsys.readouterr().out


# Batches.


def test_a_batched_function_gets_all_responses_in_one_call():
    calls = []

    def score(responses, answers, level, **columns):
        calls.append((responses, answers, level, columns))
        return [len(responses[0]), None, True]

    asked = problems("x", "y", "z", level=2)
    asked[1].extra["topic"] = "sums"
    with opened(score, batched=True) as grader:
        grades = grader.score(["a", "b", "c"], asked)
        assert grader.batched
        assert grader.score([], []) == []
    [call] = calls
    assert call == (["a", "b", "c"], ["x", "y", "z"], [2, 2, 2], {"topic": [None, "sums", None]})
    assert [each.correct for each in grades] == [True, None, True]


@pytest.mark.parametrize("made", ["array", "tensor", "tuple"])
def test_a_batched_function_may_return_an_array(made):
    kinds = {"array": np.array, "tensor": torch.tensor, "tuple": tuple}
    grades = graded(lambda r, a: kinds[made]([1.0, 0.5]), ["a", "b"], batched=True)
    assert [each.reward for each in grades] == [1.0, 0.5]


@pytest.mark.parametrize(
    "result",
    [
        *([1], [1, 2, 3], 1.0, None, "ab", {"a": 1, "b": 2}, {1.0, 2.0}, b"ab", bytearray(b"ab")),
        *(torch.tensor(1.0), torch.ones(2, 2), np.float64(1), np.ones(())),
    ],
)
def test_a_batch_with_other_results_than_one_a_response_is_an_error(result):
    with pytest.raises(RunError, match="for 2 responses; expected a list of 2 rewards"):
        graded(lambda responses, answers: result, ["a", "b"], batched=True)


def test_one_wrong_result_in_a_batch_names_its_problem():
    with pytest.raises(RunError, match="returned 'good' on problem 'p1'; expected a finite"):
        graded(lambda responses, answers: [1, "good"], ["a", "b"], batched=True)


def test_a_batch_that_fails_or_hangs_is_undecided_as_a_whole():
    def score(responses, answers):
        return 1 / 0 if responses[0] == "bad" else time.sleep(100)

    failed = graded(score, ["bad", "b", "c"], batched=True)
    assert reasons(failed) == ["error: ZeroDivisionError"] * 3
    late = graded(score, ["a", "b", "c"], batched=True, deadline=0.1)
    assert reasons(late) == ["timeout"] * 3


# Asynchronous functions.


def test_async_calls_run_at_the_same_time_up_to_a_limit():
    running = most = 0

    async def score(response, answer):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
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

    with opened(Judge(), deadline=0.4) as grader:
        for _ in range(2):
            grades = grader.score(["a", "hang", "bad", "b"], problems(*"xxxx"))
            assert reasons(grades) == ["custom", "timeout", "error: ValueError", "custom"]
        time.sleep(0.1)
        assert all(task.done() for task in tasks)  # what awaits is cancelled
    assert len(loops) == 1


def test_an_async_function_that_blocks_its_loop_is_undecided_and_a_new_loop_goes_on():
    async def score(response, answer):
        if response == "hang":
            time.sleep(1000)
        return 1

    with opened(score, deadline=0.3) as grader:
        first = grader.score(["a", "hang", "b"], problems(*"xxx"))
        assert reasons(first) == ["custom", "timeout", "custom"]
        assert reasons(grader.score(["a", "b"], problems("x", "x"))) == ["custom"] * 2


def test_a_call_that_blocks_the_loop_is_one_failure_of_all_that_wait_there():
    async def score(response, answer):
        await asyncio.sleep(0.01)
        if response == "hang":
            time.sleep(20)
        await asyncio.sleep(0.1)
        return 1

    grades = graded(score, ["a", "hang", "b", "c"], deadline=0.4, concurrency=3, max_failures=1)
    assert reasons(grades) == ["timeout", "timeout", "timeout", "custom"]


def test_the_message_on_an_async_call_shows_the_line_that_awaits(caplog):
    async def inner():
        await asyncio.Event().wait()  # here

    async def score(response, answer):
        await inner()

    graded(score, ["a"], deadline=0.1)
    assert "await asyncio.Event().wait()  # here" in caplog.text


async def exits():
    raise SystemExit("of a task of its own")


ENDS = {
    "stops": lambda: asyncio.get_running_loop().stop(),
    "exits": lambda: asyncio.ensure_future(exits()),
    "cancels": lambda: [task.cancel() for task in asyncio.all_tasks()],
}


@pytest.mark.parametrize("kind", ENDS)
def test_a_function_that_ends_its_event_loop_does_not_end_the_run(kind, capfd, caplog):
    async def score(response, answer):
        if response == "bad":
            ENDS[kind]()
        await asyncio.sleep(0.05)
        return 1

    with opened(score) as grader:
        for _ in range(2):
            grades = grader.score(["a", "bad", "b"], problems(*"xxx"))
            wrong = ["custom"] if kind != "cancels" else ["custom", "error: CancelledError"]
            assert set(reasons(grades)) <= set(wrong)
        assert reasons(grader.score(["a"], problems("x"))) == ["custom"]
        thread = grader._calls._worker
    thread.join(5)
    assert "Task was destroyed" not in capfd.readouterr().err + caplog.text


def test_what_runs_in_a_closed_event_loop_is_cancelled(caplog):
    ended = []

    async def background():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def score(response, answer):
        score.task = asyncio.ensure_future(background())
        return 1

    with opened(score) as grader:
        grader.score(["a"], problems("x"))
        thread = grader._calls._worker
    thread.join(5)
    assert ended == [True]
    assert "Task was destroyed" not in caplog.text


def test_a_batched_async_function_is_awaited_once():
    async def score(responses, answers):
        return [float(a == b) for a, b in zip(responses, answers, strict=True)]

    assert [each.reward for each in graded(score, ["x", "b"], batched=True)] == [1, 0]


# Before a run.


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (lambda response, answer: 1, {}, "unexpected keyword argument 'level'"),
        (lambda response: 1, {}, r"cannot be called as f\(response, answer, level=...\)"),
        (lambda response, answer, **_: 1 / 0, {}, "ZeroDivisionError"),
        (lambda response, answer, **_: sys.exit(3), {}, "SystemExit: 3"),
        (lambda response, answer, **_: time.sleep(9), {"deadline": 0.1}, "not return within 0.1 s"),
        (lambda response, answer, **_: "good", {}, "returned 'good'"),
        (lambda responses, answers, **_: 1, {"batched": True}, "a list of 2 rewards,"),
    ],
)
def test_the_check_finds_a_function_that_cannot_work(function, settings, message):
    asked = [*problems("x", level=1), *problems("y", level=2)]
    with pytest.raises(ConfigError, match=message):
        opened(function, **settings).check(asked)


def test_the_check_finds_a_function_of_the_other_kind():
    with pytest.raises(ConfigError, match="Set batched: true if it grades all responses"):
        opened(lambda response, answer: [1.0]).check(problems("x"))
    with pytest.raises(ConfigError, match="expected a list of 2 rewards"):
        opened(lambda responses, answers: [1.0], batched=True).check(problems("x"))


def test_the_check_looks_at_the_columns_of_all_problems_and_calls_once():
    calls = []

    def score(response, answer, level=0):
        calls.append((response, answer, level))

    opened(score).check(problems("x", "y", level=1))
    assert calls == [("x", "x", 1)]
    with pytest.raises(ConfigError, match="unexpected keyword argument 'topic'"):
        opened(score).check([*problems("x", level=1), *problems("y", topic=2)])
    assert len(calls) == 1


ROWS = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]


def broken(response, answer):
    raise ValueError("I cannot grade")


def test_train_and_evaluate_check_the_function_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError, match=r"(?s)I cannot grade.*before the run"):
        rlobj.train("grpo", data=ROWS, reward=broken, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    rewards = [{"name": "a", "kind": "exact"}, {"name": "b", "target": broken}]
    with pytest.raises(ConfigError, match="I cannot grade"):
        rlobj.train("grpo", data=ROWS, reward=rewards, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="I cannot grade"):
        rlobj.evaluate("embedded", on=ROWS, reward=broken, out=tmp_path / "eval")
    assert not (tmp_path / "eval").exists()


def test_settings_reach_a_function_that_is_passed_from_python(tmp_path):
    def score(responses, answers, **columns):
        assert len(responses) in (2, 16)  # the check, and all of a step at once
        return [float(a == b) for a, b in zip(responses, answers, strict=True)]

    settings = {
        "training.steps": 1,
        "rewards.batched": True,
        "rewards.max_failures": 0,
        "sampling.prompts_per_step": 4,
        "sampling.group_size": 4,
    }
    result = rlobj.train("grpo", data=ROWS, reward=score, out=tmp_path / "run", settings=settings)
    assert result.history[-1]["reward/undecided"] == 0


# The program.

HANGING = """
import time

def score(response, answer, **columns):
    if response != answer:
        open("hangs", "w").close()
        {hang}
    return 1
"""


def write_reward(folder: Path, hang: str) -> list[str]:
    (folder / "mine.py").write_text(HANGING.format(hang=hang))
    quick = ["--set", "training.steps=2", "--set", "evaluation.every=0", "--task", "addition"]
    return ["train", "--preset", "grpo", *quick, "--reward", f"{folder}/mine.py:score"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "hang"),
    [(signal.SIGTERM, "time.sleep(1000)"), (signal.SIGINT, "while True: pass")],
)
def test_a_second_signal_ends_a_run_whose_reward_hangs_at_once(tmp_path, monkeypatch, number, hang):
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "log"
    process = program([*write_reward(tmp_path, hang), "--out", tmp_path / "run"], log)
    wait_until((tmp_path / "hangs").exists, 120, process, log)
    process.send_signal(number)
    wait_until(lambda: "finishing and saving" in log.read_text(), 20, process, log)
    time.sleep(1.2)
    process.send_signal(number)
    assert process.wait(20) == 130, log.read_text()


@pytest.mark.slow
def test_a_signal_ends_a_run_whose_reward_hangs_after_its_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = write_reward(tmp_path, "time.sleep(1000) if not os.path.exists('once') else 0")
    text = (tmp_path / "mine.py").read_text().replace("import time", "import os, time")
    (tmp_path / "mine.py").write_text(
        text.replace("return 1", "return 0")
        .replace(
            'open("hangs", "w").close()',
            'done = os.path.exists("hangs"); open("hangs", "w").close()',
        )
        .replace("os.path.exists('once')", "done")
    )
    log = tmp_path / "log"
    words += ["--out", str(tmp_path / "run"), "--set", "rewards.deadline=3"]
    process = program(words, log)
    wait_until((tmp_path / "hangs").exists, 120, process, log)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert "did not return within 3 seconds" in log.read_text()
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
    done = subprocess.run(run, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.split(), done.returncode) == (["timeout"] * 4, 0), done.stderr


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_process_whose_call_keeps_the_lock_of_python_shows_the_line(tmp_path, kind):
    """A regular expression with catastrophic backtracking; no thread sees time or signals."""
    body = "return re.match('(a+)+$', 'a' * 60 + 'b')"
    (tmp_path / "mine.py").write_text(f"import re\n{kind} score(r, a):\n    {body}\n")
    code = """
from rlobj.data import Problem
from rlobj.rewards import Custom, calling
calling._STANDSTILL = 0.5
with Custom(target="mine.py:score", deadline=4.5).open() as grader:
    grader.score(["a"], [Problem("p", "?", "x")])
"""
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-c", code], stderr=stderr, cwd=tmp_path)
    try:
        wait_until(lambda: 'mine.py", line 3 in score' in log.read_text(), 60, log=log)
        assert "Timeout (0:00:05)!" in log.read_text()
        time.sleep(0.3)
        assert process.poll() is None  # a process that was only paused would go on
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_program_tells_a_reward_that_cannot_work_before_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def score(response, answer):\n    return answer.no\n")
    words = ["train", "--preset", "grpo", "--task", "addition", "--reward", "mine.py:score"]
    for more in ([], ["--dry-run"]):
        log = tmp_path / "log"
        process = program([*words, "--out", tmp_path / "run", *more], log)
        assert process.wait(100) == 2
        text = " ".join(log.read_text().split())
        assert "AttributeError: 'str' object has no attribute 'no'" in text
        assert "line 2: return answer.no" in text
        assert not (tmp_path / "run").exists()


def test_a_file_that_ends_the_program_when_it_is_imported_is_told(tmp_path):
    (tmp_path / "mine.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(ConfigError, match="failed: SystemExit: 0"):
        Custom(target=f"{tmp_path}/mine.py:score").open()


def test_an_import_that_takes_long_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("rlobj.base.targets._SLOW", 0.1)
    (tmp_path / "mine.py").write_text("import time\ntime.sleep(1)\ndef score(r, a): pass\n")
    Custom(target=f"{tmp_path}/mine.py:score").open()
    assert f"Importing {tmp_path}/mine.py takes long" in caplog.text
