"""Who is at fault when there is no reply: the answer, its gold answer, or the machine."""

from __future__ import annotations

import os
import signal

import pytest

from rlobj.base.errors import RunError
from rlobj.workers import judge as module
from rlobj.workers.judge import Judge

SOUND = "echo", [1, "sound"]


@pytest.fixture
def judge():
    judge = Judge("odd_worker:Slow", 0.3, 2**32, recycle_after=4)
    yield judge
    judge.kill()


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
    monkeypatch.setattr(module, "patience", lambda deadline: 1.0 if how == "hang" else 60.0)
    note = tmp_path / "note"
    assert judge.judge(("noted", note, how), SOUND) == (False, reason)
    assert len(note.read_text()) == tries
    assert judge.reply(*SOUND) == (1, "sound")


@pytest.mark.parametrize("how", ["hang", "exit", "stop"])
def test_a_fault_of_the_machine_is_tried_again(judge, how, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "patience", lambda deadline: 1.0)
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
        assert judge.reply(*SOUND) == (1, "sound")
        numbers.append(judge.pid)
        if turn == 0:
            os.kill(judge.pid, signal.SIGKILL)
            os.waitid(os.P_PID, judge.pid, os.WEXITED | os.WNOWAIT)
    assert len({*numbers}) == 3  # the last one, after four questions


def test_the_time_to_prepare_does_not_count(judge):
    assert judge.reply("echo", [1, "prepares longer than its deadline"])[0] == 1


def test_a_package_that_cannot_be_loaded_is_an_error(judge):
    with pytest.raises(RunError, match="could not load: ModuleNotFoundError: No module"):
        judge.reply("imports")


def test_a_process_that_does_not_start_is_an_error():
    judge = Judge("odd_worker:Dies", 1.0, 2**32, 1)
    with pytest.raises(RunError, match="did not start in 3 attempts"):
        judge.reply()
