"""`rlobj diagnose`, and the line that training prints when a finding begins."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from screens import console, printed, text_of

from rlobj.insight import Finding
from rlobj.runs.configuration import dump_config
from rlobj.runs.layout import STOP_FILE
from rlobj.settings.building import compose
from rlobj.training.progress import RunScreen

FOUND = Finding("collapse", "[red]fell[/red] from 0.5 to 0", "Go back.", 7, 7)


def write_run(folder: Path, steps: int = 8) -> Path:
    folder.mkdir()
    (folder / "config.resolved.yaml").write_text(dump_config(compose("grpo")))
    lines = [{"step": step, "reward/mean": 0.5, "reward/std": 0.5} for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


output = functools.partial(printed, "diagnose", columns=100)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_finding_is_one_line_on_the_screen_the_first_time(terminal: bool) -> None:
    out = console(100, terminal=terminal)
    with RunScreen(out) as screen:
        screen.found(FOUND)
        screen.found(FOUND)
    assert text_of(out).count("step 7: collapse: [red]fell[/red] from 0.5 to 0") == 1


def test_a_silent_run_says_what_was_checked(tmp_path: Path) -> None:
    text = output(str(write_run(tmp_path / "run")), "--fail")
    assert "8 steps: no findings" in text
    assert "checked: collapse, update-too-large, inert-setting" in text
    assert "not checked, for lack of metrics: no-signal" in text


def test_several_runs_fail_if_one_of_them_has_a_finding(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name) for name in ("a", "b")]
    note = {"step": 9, "finding": "sampler-drift", "message": "a gap \x1b[2J of [bold]3 nats"}
    (runs[1] / STOP_FILE).write_text(json.dumps(note))
    text = output(*map(str, runs), "--fail", code=1)
    assert "sampler-drift, since step 9" in text
    assert "a gap ␛[2J of [bold]3 nats" in text
    told = json.loads(output(*map(str, runs), "--json"))
    assert [len(run["findings"]) for run in told["runs"]] == [0, 1]
