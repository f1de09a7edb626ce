"""Reward functions that a setting names run in a process of their own."""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from custom_rewards import problems, reasons

from rlobj.base.errors import ConfigError
from rlobj.base.targets import importing
from rlobj.rewards import Custom, Graded

FUNCTIONS = """
import asyncio, ctypes, os, random, sys, time
import numpy

def right(response, answer, **columns):
    return {"reward": 1, "correct": response == answer}

def writes(response, answer, box):
    box.append(response)
    return len(box)

def keys(response, answer, table):
    return table[1, "a"]

def prints(response, answer):
    print("seen", response)
    print("warned", response, file=sys.stderr)
    os.write(1, b"not through Python")
    return 1

def draws(response, answer):
    return random.random() + numpy.random.random()

def dies_later(response, answer):
    import threading
    threading.Timer(0.2, os._exit, [5]).start()
    return 1

def pid(response, answer):
    return os.getpid()

def batch(responses, answers):
    return [len(each) for each in responses]

async def writes_late(response, answer, box):
    box.append(2)
    await asyncio.sleep(0.1)
    return len(box)

async def waits(response, answer):
    if response == "hang":
        await asyncio.Event().wait()  # here
    if response == "block":
        time.sleep(1000)
    await asyncio.sleep(0.5)
    return 1

NUMBER = 1
"""


@pytest.fixture
def mine(tmp_path) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(FUNCTIONS)
    return file


def graded(file: Path, name: str, *responses: str, **settings: Any) -> list[Graded]:
    with Custom(target=f"{file}:{name}", **settings).open() as grader:
        return grader.score(responses, problems(*"x" * len(responses)))


def test_a_function_grades_and_says_what_is_right(mine):
    with Custom(target=f"{mine}:right").open() as grader:
        grader.check(problems("x", level=3))
        assert grader.says_right
        grades = grader.score(["x", "y"], problems("x", "x", level=3))
    assert [(each.reward, each.correct) for each in grades] == [(1, True), (1, False)]
    assert [each.reward for each in graded(mine, "batch", "a", "bcd", batched=True)] == [1, 3]


def test_a_process_that_ends_between_the_calls_is_replaced(mine):
    with Custom(target=f"{mine}:dies_later").open() as grader:
        for _ in range(2):
            assert reasons(grader.score(["a"], problems("x"))) == ["custom"]
            time.sleep(1)


def test_a_function_gets_a_copy_of_the_data_with_all_its_types(mine):
    asked = [*problems("x", box=[1])] * 2
    with Custom(target=f"{mine}:writes").open() as grader:
        assert [each.reward for each in grader.score(["a", "b"], asked)] == [2, 2]
    with Custom(target=f"{mine}:writes_late").open() as grader:
        assert [each.reward for each in grader.score(["a", "b"], asked)] == [2, 2]
    assert asked[0].extra == {"box": [1]}
    with Custom(target=f"{mine}:keys").open() as grader:
        assert grader.score(["a"], problems("x", table={(1, "a"): 5}))[0].reward == 5


def test_what_a_function_prints_is_printed_here(mine, capsys):
    graded(mine, "prints", "a")
    assert capsys.readouterr() == ("seen a\nwarned a\n", "")


def test_draws_follow_from_the_state_here_however_many_calls_are_sent_at_once(mine):
    def drawn(seed: int, *sizes: int) -> list[float]:
        random.seed(seed)
        with Custom(target=f"{mine}:draws").open() as grader:
            parts = [grader.score(["a"] * size, problems(*"x" * size)) for size in sizes]
        return [grade.reward for part in parts for grade in part]

    first = drawn(1, 5)
    assert first == drawn(1, 1, 3, 1) != drawn(2, 5)
    assert len({*first}) == 5


def test_async_calls_run_at_the_same_time_and_hang_alone(mine, caplog):
    grades = graded(mine, "waits", *"ab", "hang", *"cdef", deadline=1.5)
    assert reasons(grades) == [*["custom"] * 2, "timeout", *["custom"] * 4]
    assert ": await asyncio.Event().wait()  # here" in caplog.text
    assert reasons(graded(mine, "waits", "block", "a", deadline=0.7, concurrency=1)) == [
        "timeout",
        "custom",
    ]


def test_one_process_makes_all_calls_and_ends_with_the_grader(mine, monkeypatch):
    monkeypatch.delitem(sys.modules, "_rlobj_target_mine", raising=False)
    with Custom(target=f"{mine}:pid").open() as grader:
        numbers = {each.reward for _ in range(2) for each in grader.score("ab", problems(*"xx"))}
        [number] = map(int, numbers)
        assert number != os.getpid()
        os.kill(number, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)
    assert "_rlobj_target_mine" not in sys.modules


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os; os._exit(4)", "its import: ended its process with the exit status 4"),
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.exit(0)", "failed: SystemExit: 0"),
    ],
)
def test_a_file_that_cannot_be_imported_is_told(tmp_path, text, message):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Custom(target=f"{tmp_path}/mine.py:score").open()


def test_no_process_imports_what_is_not_trusted(tmp_path):
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'seen')!r}, 'w')")
    with importing(()), pytest.raises(ConfigError, match="If you trust it, add trust=True"):
        Custom(target=f"{tmp_path}/mine.py:score").open()
    assert not (tmp_path / "seen").exists()
