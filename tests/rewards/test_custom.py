"""Functions of users as rewards: results, exceptions, batches, and the check before a run."""

from __future__ import annotations

import asyncio
import re
import sys

import numpy as np
import pytest
import torch
from custom_rewards import graded, opened, problems, reasons

import rlobj
from rlobj.base.errors import ConfigError, RunError
from rlobj.data import Problem
from rlobj.rewards import Custom


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


def test_a_timeout_error_of_the_function_is_no_time_limit():
    def score(response, answer):
        raise TimeoutError("the server is slow")

    assert reasons(graded(score, ["a"])) == ["error: TimeoutError"]


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
    assert [each.undecided for each in grades] == [False, True, False]


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple])
def test_a_batched_function_may_return_an_array(kind):
    grades = graded(lambda r, a: kind([1.0, 0.5]), ["a", "b"], batched=True)
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


@pytest.mark.parametrize("text", ["0.5", b"0.5", np.array("0.5"), np.str_("1")], ids=repr)
@pytest.mark.parametrize("form", ["alone", "in a list", "in a mapping", "in a list of mappings"])
def test_a_text_is_no_reward_and_its_function_is_named_with_file_and_line(text, form):
    value = {"reward": text, "correct": True} if "mapping" in form else text

    def score(response, answer):
        return [value, value] if "list" in form else value

    line = score.__code__.co_firstlineno
    place = rf"expected a .*\n  at {re.escape(__file__)}, line {line}\n  response: 'a'"
    batched = "list" in form
    with pytest.raises(RunError, match=rf"returned .*(0\.5|1)'.* on problem 'p0'; {place}"):
        graded(score, ["a", "b"] if batched else ["a"], batched=batched)


def test_a_batch_that_fails_or_hangs_is_undecided_as_a_whole():
    async def score(responses, answers):
        return 1 / 0 if responses[0] == "bad" else await asyncio.sleep(100)

    failed = graded(score, ["bad", "b", "c"], batched=True)
    assert reasons(failed) == ["error: ZeroDivisionError"] * 3
    late = graded(score, ["a", "b", "c"], batched=True, deadline=0.1)
    assert reasons(late) == ["timeout"] * 3


def test_no_call_is_made_after_the_failure_that_ends_the_run():
    made = []

    def score(response, answer):
        made.append(response)
        return 1 / (response != "bad")

    with pytest.raises(RunError, match="ZeroDivisionError"):
        graded(score, ["a", "bad", "b", "c"], max_failures=0)
    assert made == ["a", "bad"]


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

    async def here() -> None:  # a notebook has an event loop of its own
        with opened(Judge(), deadline=2) as grader:
            for _ in range(2):
                grades = grader.score(["a", "hang", "bad", "b"], problems(*"xxxx"))
                assert reasons(grades) == ["custom", "timeout", "error: ValueError", "custom"]

    asyncio.run(here())
    assert all(task.done() for task in tasks)  # what awaits is cancelled
    assert len(loops) == 1


# Before a run.


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (lambda response, answer: 1, {}, "unexpected keyword argument 'level'"),
        (lambda response: 1, {}, r"def f\(response, answer, \*\*columns\)"),
        (lambda response, answer, **_: 1 / 0, {}, "ZeroDivisionError"),
        (lambda response, answer, **_: sys.exit(3), {}, "SystemExit: 3"),
        (lambda response, answer, **_: "good", {}, "returned 'good'"),
        (lambda response, answer, **_: [1], {}, r"returned \[1\] on problem"),
        (lambda responses, answers, **_: 1, {"batched": True}, "a list of 2 rewards,"),
    ],
)
def test_the_check_finds_a_function_that_cannot_work(function, settings, message):
    asked = [*problems("x", level=1), *problems("y", level=2)]
    with pytest.raises(ConfigError, match=message):
        opened(function, **settings).check(asked)


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


SEEN: list[int] = []


def seen_here(responses, answers, **columns):
    SEEN.append(len(responses))
    return [float(a == b) for a, b in zip(responses, answers, strict=True)]


def test_settings_reach_a_function_that_is_passed_from_python_and_runs_here(tmp_path):
    settings = {
        "training.steps": 1,
        "rewards.batched": True,
        "rewards.max_failures": 0,
        "sampling.prompts_per_step": 4,
        "sampling.group_size": 4,
    }
    out = tmp_path / "run"
    result = rlobj.train("grpo", data=ROWS, reward=seen_here, out=out, settings=settings)
    assert SEEN == [2, 16]  # the check, and all of a step at once
    assert result.history[-1]["reward/undecided"] == 0


COUNTS = """
import os

def count(response, answer, note):
    with open(note, "a") as file:
        file.write(response)
    if response == "b":
        os._exit(3)
    return 1
"""


def test_a_call_that_ended_its_process_is_not_made_again_nor_those_before_it(tmp_path):
    note, file = tmp_path / "note", tmp_path / "counts.py"
    file.write_text(COUNTS)
    asked = [Problem(str(n), "?", "x", {"note": str(note)}) for n in range(4)]
    with Custom(target=f"{file}:count").open() as grader:
        graded = grader.score([*"abca"], asked)
    assert note.read_text() == "abca"
    assert [grade.reason for grade in graded] == ["custom", "crash", "custom", "custom"]
