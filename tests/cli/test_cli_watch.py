"""`rlobj watch`: a run is followed from its folder until it ends."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from forked import wait_until
from runs import finish, metrics, program, wait_for_step
from screens import console, text_of

from rlobj.base.errors import ConfigError
from rlobj.base.files import lock_folder
from rlobj.config.run_config import compose
from rlobj.config.run_folder import STOP_FILE, dump_config
from rlobj_cli.screen import following
from rlobj_cli.screen.progress import LiveScreen


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "POLL", 0.01)
    monkeypatch.setattr(following, "PATIENCE", 0.0)


def line(step: int, **more: object) -> str:
    return json.dumps({"step": step, "reward/mean": step / 8, "time/step": 60.0, **more}) + "\n"


def make_run(folder: Path, *lines: str, steps: int = 8, saved: int = 0) -> Path:
    """A run that no process trains, with a checkpoint if a step is saved."""
    (folder / "checkpoints" / (f"step-{saved:06d}" if saved else "")).mkdir(parents=True)
    config = compose("grpo", [("--set", {"training": {"steps": steps}})])
    (folder / "config.resolved.yaml").write_text(dump_config(config))
    if lines:
        (folder / "metrics.jsonl").write_text("".join(lines))
    return folder


@contextlib.contextmanager
def trained(run: Path, *acts: Callable[[], object]) -> Iterator[None]:
    """Another thread holds the run's lock and does one thing after another."""
    locked = threading.Event()

    def work() -> None:
        with lock_folder(run, "training in"):
            locked.set()
            for act in acts:
                time.sleep(0.1)
                act()

    thread = threading.Thread(target=work)
    thread.start()
    locked.wait()
    yield
    thread.join()


def appends(run: Path, text: str) -> Callable[[], object]:
    def act() -> None:
        with (run / "metrics.jsonl").open("a") as file:
            file.write(text)

    return act


def watched(run: Path, code: int = 0, *, terminal: bool = False) -> str:
    screen = console(200, terminal=terminal)
    assert following.follow(screen, run) == code
    return text_of(screen)


def test_a_line_is_shown_when_it_is_complete_and_the_run_is_followed_to_its_end(tmp_path):
    run = make_run(tmp_path / "run", steps=2, saved=2)
    first, second = line(1), line(2)
    parts = first[:20], first[20:] + second[:5], second[5:]
    with trained(run, *(appends(run, part) for part in parts)):
        text = watched(run)
    assert "clip(low=0.2" in text.partition("waiting")[0]  # the rule of the run
    assert text.count("waiting for the first step") == 1
    assert text.index("waiting") < text.index("step 1/2  reward 0.125") < text.index("step 2/2")
    assert "1:00 left" in text
    assert text.index("step 2/2") < text.index("Finished: 2 steps.")
    assert f"rlobj report {run}" in text
    assert "resume" not in text


ENDINGS = {
    "finished": (8, 8, None, 0, "Finished: 8 steps.", ""),
    "stopped": (5, 5, None, 0, "Stopped at step 5 of 8, which is saved.", "train --resume"),
    "killed": (6, 5, None, 1, "Ended at step 6 of 8 without a message.", "train --resume"),
    "killed early": (6, 0, None, 1, "it has no checkpoint.", "train --resume"),
    "failed": (6, 5, "all is\x1b[2J lost", 1, "Failed at step 6: all is␛[2J lost", "--resume"),
    "stopped on a finding": (6, 5, "new:\n  rlobj train ...", 1, "Failed at step 6: new:", ""),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_says_what_became_of_the_run_and_how_to_go_on(tmp_path: Path, ending: str) -> None:
    steps, saved, message, code, text, resumed = ENDINGS[ending]
    run = make_run(tmp_path / "run", *(line(step) for step in range(1, steps + 1)), saved=saved)
    if message is not None:
        note = {"step": steps, "finding": None, "message": message}
        (run / STOP_FILE).write_text(json.dumps(note))
    told = watched(run, code)
    assert text in told
    assert (f"rlobj train --resume {run}" in told) == bool(resumed)
    assert "\x1b" not in told


def test_a_finding_is_told_when_its_step_comes(tmp_path: Path) -> None:
    rewards = [0.9] * 10 + [0.0] * 10
    lines = [
        line(
            i, **{"reward/mean": x, "reward/accuracy": x, "response/count": 256, "reward/std": 0.3}
        )
        for i, x in enumerate(rewards, 1)
    ]
    run = make_run(tmp_path / "run", *lines, steps=20, saved=20)
    text = watched(run)
    assert text.index("step 10/20") < text.index(": collapse: ") < text.index("step 20/20")
    assert f"rlobj diagnose {run}" in text


def test_a_resumed_run_shows_repeated_steps_once_and_its_new_number_of_steps(tmp_path):
    run = make_run(tmp_path / "run", line(1), line(2), line(3), steps=3, saved=4)

    def resume() -> None:
        config = compose("grpo", [("--set", {"training": {"steps": 4}})])
        (run / "config.resolved.yaml").write_text(dump_config(config))
        (run / "new").write_text(line(1) + line(2))
        (run / "new").replace(run / "metrics.jsonl")

    with trained(run, resume, appends(run, line(3)), appends(run, line(4))):
        text = watched(run)
    steps = [each.split()[1] for each in text.splitlines() if each.startswith("step")]
    assert steps == ["1/3", "2/3", "3/3", "4/4"]
    assert "Finished: 4 steps." in text


@pytest.mark.parametrize("terminal", [False, True], ids=["pipe", "terminal"])
def test_nothing_in_a_line_reaches_the_terminal_as_code_or_breaks_the_screen(tmp_path, terminal):
    hostile = {"reward/[red]\x1b[2J/mean": 0.5, "policy/entropy": "[bold]x", "eval/accuracy": [1]}
    lines = [
        line(1, **hostile),
        line(2, **{"time/step": 10**400, "train/grad_norm": float("nan"), "kept": float("inf")}),
        "[" * 100_000 + "\n",
        "no JSON\n",
        '{"step": "3"}\n{"step": 1e9}\n[]\n',
        line(10**30),
        line(3, **hostile),
    ]
    text = watched(make_run(tmp_path / "run", *lines, steps=3, saved=3), terminal=terminal)
    assert "\x1b[2J" not in text
    assert "reward [red]␛[2J" in text
    assert "Finished: 3 steps." in text


def test_a_terminal_shows_the_panel_and_keeps_its_last_numbers(tmp_path: Path) -> None:
    lines = [line(step, **{"policy/entropy": step / 10}) for step in (1, 2, 3)]
    run = make_run(tmp_path / "run", *lines, steps=4, saved=3)
    with trained(run, lambda: None):
        text = watched(run, terminal=True)
    assert "3/4" in text
    end = text[text.rindex("history") :]
    assert ["entropy,", "nats", "0.100", "0.300"] in [each.split()[:4] for each in end.splitlines()]
    assert "sampling" not in text  # the stage is not known


def test_the_time_left_is_that_of_the_last_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = LiveScreen(console(100, terminal=True), 50, 0, [])
    assert screen.times() == ("0:00", "– left")
    for step in range(1, 31):
        screen.add({"step": step, "time/step": 100.0 if step <= 10 else 2.0})
    now = screen.ended
    monkeypatch.setattr(time, "time", lambda: now + 1)
    assert screen.times() == ("17:21", "0:39 left")  # 10·100 + 20·2 + 1 seconds; 20·2 − 1 left
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert screen.times() == ("18:20", "0:38 left")  # a step that takes longer: the others are left
    screen.steps = 31
    assert screen.times()[1] == "last step"


def test_a_metric_of_some_steps_has_the_same_time_axis_as_the_others() -> None:
    screen = LiveScreen(console(100, terminal=True), 8, 0, [])
    for step in range(1, 9):
        accuracy = {"eval/accuracy": step / 8} if step in (1, 4) else {}
        screen.add({"step": step, "reward/mean": 0.5, **accuracy})
    assert screen.course("eval/accuracy") == [0.125] * 3 + [0.5] * 5
    assert len(screen.course("reward/mean")) == 8


def test_a_run_that_is_just_starting_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "PATIENCE", 30.0)
    run = tmp_path / "run"
    start = threading.Timer(0.3, lambda: make_run(tmp_path / "new", line(1), steps=1).rename(run))
    start.start()
    text = watched(run)
    start.join()
    assert text.count(f"waiting for {run}, which does not exist yet") == 1
    assert "Finished: 1 steps." in text


def test_settings_that_name_code_are_imported_only_if_they_are_trusted(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *map(line, range(1, 9)), saved=8)
    code, marker = tmp_path / "own.py", tmp_path / "imported"
    code.write_text(
        f"from rlobj import prob\nopen({str(marker)!r}, 'w').close()\nrule = prob < 0\n"
    )
    settings = yaml.safe_load((run / "config.resolved.yaml").read_text())
    settings["objective"]["drop"] = f"custom('{code}:rule')"
    (run / "config.resolved.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(ConfigError, match="add trust=True"):
        following.follow(console(), run)
    assert not marker.exists()
    with pytest.raises(ConfigError, match="subclass of rlobj's CustomRule"):
        following.follow(console(), run, trust=True)
    assert marker.exists()


def test_the_next_commands_of_a_run_that_names_code_have_trust(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", *map(line, range(1, 6)), saved=4)
    (tmp_path / "own.py").write_text("def score(response, answer, **columns):\n    return 1\n")
    settings = yaml.safe_load((run / "config.resolved.yaml").read_text())
    settings["rewards"] = {"kind": "custom", "target": f"{tmp_path}/own.py:score"}
    (run / "config.resolved.yaml").write_text(yaml.safe_dump(settings))
    out = console(300)
    assert following.follow(out, run, trust=True) == 1
    assert f"rlobj train --resume {run} --trust\n" in text_of(out)


@pytest.mark.slow
def test_ctrl_c_ends_the_watching_and_not_the_training(tmp_path: Path) -> None:
    run, logs = tmp_path / "run", [tmp_path / f"{i}.log" for i in range(3)]
    words = ["--set", "training.steps=400", "--set", "evaluation.every=0", "--out", run]
    training = program(["train", "--preset", "grpo", "--task", "max-digits", *words], logs[0])
    try:
        wait_for_step(run, 1, training, logs[0])
        watching, other = (program(["watch", run], log) for log in logs[1:])
        wait_until(lambda: "step" in logs[1].read_text(), 120, watching, logs[1])
        assert training.poll() is None, "the training ended before the watching"
        watching.send_signal(signal.SIGINT)
        assert "the run goes on" in finish(watching, logs[1], code=130)
        training.send_signal(signal.SIGTERM)
        finish(training, logs[0])
        text = finish(other, logs[2])
    finally:
        training.kill()
    done = metrics(run)[-1]["step"]
    assert f"step {done:>3}/400" in text
    assert f"Stopped at step {done} of 400, which is saved." in text
