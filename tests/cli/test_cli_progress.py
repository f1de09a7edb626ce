"""What is seen while a run trains."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from screens import console, text_of

from rlobj.data import Problem
from rlobj.evaluation import GradedBenchmark, GradedProblem
from rlobj.rewards import Graded
from rlobj.samplers import Response
from rlobj.settings.building import compose
from rlobj.training.progress import RunScreen
from rlobj.training.resolving import ResolvedRun

FACTS = {"policy": "tiny", "device": "cpu, float32, 1 thread"}


def half_right() -> GradedBenchmark:
    """One problem, two samples, one of them right."""
    grades = (Graded(float(right), right, "", "2") for right in (True, False))
    responses = (Response([1], [2], [0.0], "2", "stop", 0, grade=grade) for grade in grades)
    answered = GradedProblem(Problem("a", "1+1=", "2"), tuple(responses))
    return GradedBenchmark("evaluation", (answered,))


def train(screen: RunScreen, steps: int) -> None:
    """The events that a trainer sends to its callbacks."""
    with screen:
        screen.steps = steps
        screen.started(FACTS)
        screen.evaluated(0, half_right())
        for step in range(1, steps + 1):
            for phase in ("sampling", "scoring", "updating"):
                screen.phase(phase)
            metrics = {
                "step": step,
                "reward/mean": step / steps,
                "tokens/step": 100.0,
                "train/grad_norm": 0.5,
                "response/length_mean": 1234.5,
                "sampler/logprob_gap": 2e-7,
            }
            if step == steps:
                screen.phase("evaluating")
                screen.evaluated(step, half_right())
                metrics |= {"eval/accuracy": 0.75, "eval/accuracy_se_samples": 0.1}
            screen.stepped(step, metrics)


def test_plain_lines_come_twenty_times_a_run_without_control_characters() -> None:
    out = console(80, terminal=False)
    train(RunScreen(out), 200)
    text = text_of(out)
    steps = [line.split()[1] for line in text.splitlines() if line.startswith("step")]
    assert steps[:3] == ["0/200", "10/200", "20/200"]
    assert len(steps) == 21
    numbers = "gradient norm 0.500  response length 1,234.5  sampler gap, nats 2.0e-07"
    assert text.count(numbers) == 20
    assert "step 200/200  reward 1.000  held-out accuracy 75.0% ± 10.0%" in text
    assert not {character for character in text if ord(character) < 32} - {"\n"}


def test_each_evaluation_and_the_last_step_have_a_line() -> None:
    out = console(200, terminal=False)
    screen = RunScreen(out)
    screen.steps = 101
    for step in range(1, 102):
        held_out = {"eval/accuracy": 0.5, "eval/accuracy_se_samples": 0.015} if step == 7 else {}
        screen.stepped(step, {"step": step, "reward/mean": 0.5, **held_out})
    lines = text_of(out).splitlines()
    assert [int(line[4:].split("/")[0]) for line in lines] == [5, 7, *range(10, 101, 5), 101]
    assert "held-out accuracy 50.0% ± 1.5%" in lines[1]


def test_slow_steps_have_a_plain_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlobj.training.progress.EVERY", -1.0)
    out = console(80, terminal=False)
    train(RunScreen(out), 200)
    assert text_of(out).count("gradient norm") == 200


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_panel_shows_first_and_latest_numbers_within_the_width(width: int) -> None:
    out = console(width, terminal=True)
    screen = RunScreen(out)
    train(screen, 8)
    with out.capture() as captured:
        out.print(screen.panel())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    reward = next(line for line in lines if line.startswith("reward"))
    assert reward.split()[1:] == ["0.125", "1.000"]
    accuracy = next(line for line in lines if line.startswith("held-out"))
    assert accuracy.split()[2:4] == ["50.0%", "75.0%"]
    assert "8/8" in lines[0]
    latest = {
        "gradient norm": "0.500",
        "response length": "1,234.5",
        "sampler gap, nats": "2.0e-07",
    }
    for name, value in latest.items():
        [line] = [line for line in lines if line.startswith(name)]
        assert line.removeprefix(name).split()[:2] == [value, value]


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_what_a_run_has_no_value_of_is_not_shown(terminal: bool) -> None:
    out = console(200, terminal=terminal)
    screen = RunScreen(out)
    for line in ({}, {"turns/mean": 1.953, "tools/used_share": 0.9524, "reward/neat/mean": 0.25}):
        screen.stepped(1, {"step": 1, "reward/mean": 0.5, "train/grad_norm": float("nan"), **line})
        assert ("turns" in [name for name, *_ in screen.rows()]) == bool(line)
    if terminal:
        out.print(screen.panel())
    text = " ".join(text_of(out).split())
    for shown in ("reward neat 0.250", "turns 1.95", "with a call 0.952"):
        assert shown in text
    assert "gradient norm" not in text


def test_the_time_left_is_that_of_the_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = RunScreen(console(100, terminal=True))
    screen.steps = 50
    assert screen.times() == ("0:00", "– left")
    for step in range(1, 31):
        screen.stepped(step, {"step": step, "time/step": 100.0 if step <= 10 else 2.0})
    now = screen.ended_at
    monkeypatch.setattr(time, "time", lambda: now + 1)
    assert screen.times() == ("17:21", "0:39 left")  # 10·100 + 20·2 + 1 seconds; 20·2 − 1 left
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert screen.times() == ("18:20", "0:38 left")  # a step that takes longer: the others are left


def test_the_time_left_after_a_resume_is_that_of_steps_since_then() -> None:
    """The steps before it may have been on a slower machine."""
    before = [{"step": step, "time/step": 100.0} for step in range(1, 11)]
    config = SimpleNamespace(training=SimpleNamespace(steps=20))
    screen = RunScreen(console(100, terminal=True))
    screen.opened(SimpleNamespace(config=config, done=10, history=lambda: before))  # type: ignore[arg-type]
    assert screen.times()[1] == "– left"
    screen.stepped(11, {"step": 11, "time/step": 2.0})
    assert screen.times()[1] == "0:18 left"


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_header_is_shown_with_the_first_event_of_the_run(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[ResolvedRun] = []
    monkeypatch.setattr(RunScreen, "header", lambda _, run: calls.append(run))
    run = ResolvedRun(compose("stapo"), Path("run"))
    with RunScreen(console(80, terminal=terminal)) as screen:
        screen.begin()  # a warning while the run is opened
        screen.opened(run)
        assert calls == []
        screen.started({"device": "cpu", "run": "here"})
        assert calls == [run]
