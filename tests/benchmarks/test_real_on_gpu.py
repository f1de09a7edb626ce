"""The program for a real model on a GPU: how many steps its runs make, and its page."""

import argparse
import json
import shutil
import signal
import time

import pytest
from benchmarks.real import on_gpu
from tiny import tiny_config

from rlobj.training import run_training


@pytest.fixture
def signals(monkeypatch):
    """Signals that would end this process."""
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)
    return raised


def paces(folder, seconds_left, *names):
    """The callbacks of runs that may make 200 steps."""
    options = argparse.Namespace(steps=200, until=time.time() + on_gpu.RESERVE + seconds_left)
    for name in names:
        (folder / name).mkdir()
    return [on_gpu.Pace(folder / name, options) for name in names]


def test_all_runs_make_the_steps_of_the_slower_one(tmp_path, signals):
    """5 steps, and 1,000 s at 5% more than 11 s a step: 91 steps, the last evaluation after 80."""
    ends = []
    fast, slow = paces(tmp_path, 1000, "fast", "slow")
    for step in range(1, 81):
        for pace, seconds in ((fast, 5.0), (slow, 11.0)):
            pace.stepped(step, {"time/step": seconds})
            ends += [step] * len(signals)
            signals.clear()
    assert ends == [80, 80]


def test_a_run_ends_when_its_time_is_over(tmp_path, signals):
    [pace] = paces(tmp_path, -1, "run")
    pace.stepped(1, {"time/step": 1.0})
    assert signals == [signal.SIGTERM]


def test_the_page_compares_the_steps_that_all_runs_have(policy, tmp_path):
    quick = {
        "sampling": {"prompts_per_step": 8},
        "evaluation": {"every": 1, "problems": 8},
    }
    for arm, steps in (("dapo-loss, lag 4", 2), ("unclipped, lag 8", 3)):
        config = tiny_config(policy, "grpo", training={"steps": steps}, **quick)
        run_training(config, tmp_path / "transformers" / arm)
    (tmp_path / "facts.json").write_text(json.dumps({"engine": "transformers"}))
    (tmp_path / "warm.txt").write_text("2.5\n1.5\n")
    on_gpu.write_page(tmp_path)
    page = (tmp_path / "on_gpu.md").read_text()
    assert "Each run has 2 steps." in page
    assert "| held-out accuracy after step | 0 | 1 | 2 |" in page
    assert (tmp_path / "on_gpu.png").exists()
    results = json.loads((tmp_path / "on_gpu.json").read_text())
    assert [len(lines) for lines in results["runs"].values()] == [3, 3]
    shutil.rmtree(tmp_path / "transformers" / "unclipped, lag 8")  # it ended before its first step
    on_gpu.write_page(tmp_path)
    assert "\n| dapo-loss, lag 4 |" in (tmp_path / "on_gpu.md").read_text()
