"""The folder of a run: what is refused as one, and files in it that no run has written."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from limits import replaced, within

from rlobj.base.errors import ConfigError
from rlobj.runs.configuration import read_run_config, read_settings
from rlobj.runs.metrics import read_lines, read_metrics
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.sessions import read_changes, read_sessions, read_stop

DEEP = "[" * 100_000


def test_lines_that_are_nested_deeply_or_too_large_are_damage(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "a": 1}\n' + DEEP)
    (tmp_path / "sessions.jsonl").write_text(DEEP + '\n{"step": 0, "changed": {"a": 1}}\n')
    assert read_metrics(tmp_path) == [{"step": 0, "a": 1}]
    assert len(read_sessions(tmp_path)) == 1
    assert read_changes(tmp_path) == []
    for step in (DEEP, "1e999", "null"):
        (tmp_path / "stopped.json").write_text(
            f'{{"step": {step}, "finding": null, "message": ""}}'
        )
        assert read_stop(tmp_path) is None


def line(step: int, **more: Any) -> bytes:
    return json.dumps({"step": step, "reward/mean": step / 8, **more}).encode() + b"\n"


DAMAGED = {
    "garbage": b"\x8f\x03{]\n",
    "NUL bytes": b"\0" * 500 + b"\n",
    "no UTF-8": b'{"step": 4, "\xff\xfe": 1}\n',
    "a half line": line(4)[:20] + b"\n",
    "an empty line": b"\n",
    "a list": b"[4]\n",
    "no step": b'{"reward/mean": 0.5}\n',
    "a step that is true": b'{"step": true}\n',
    "a step that is a half": b'{"step": 4.5}\n',
    "a step below 0": b'{"step": -4}\n',
    "a step that no computer makes": b'{"step": 1' + b"0" * 400 + b"}\n",
    "a second line of a step": line(2),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_line_is_named_and_those_after_it_are_read(tmp_path: Path, name: str) -> None:
    good = [line(step) for step in (0, 1, 2, 3, 5, 6)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join([*good[:4], DAMAGED[name], *good[4:]]))
    notes: list[str] = []
    with within(10):
        assert [each["step"] for each in read_lines(tmp_path, notes)] == [0, 1, 2, 3, 5, 6]
    [note] = notes
    assert note.startswith("metrics.jsonl: line 5 ")
    assert note.endswith("left out")


def test_lines_in_another_order_are_sorted_and_named(tmp_path: Path) -> None:
    steps = (1, 9, 2, 3)  # a 9 that was 0
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(map(line, steps)))
    notes: list[str] = []
    assert [each["step"] for each in read_lines(tmp_path, notes)] == [1, 2, 3, 9]
    after = "after a line of step 9"
    assert notes == [f"metrics.jsonl: line {n} has step {s}, {after}" for n, s in ((3, 2), (4, 3))]


def test_a_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line(1))
    with (tmp_path / "metrics.jsonl").open("r+b") as file:
        file.truncate(1 << 40)
    notes: list[str] = []
    with within(20, 1 << 29):
        assert len(read_lines(tmp_path, notes)) == 1
    assert notes[-1] == "metrics.jsonl: line 2 is too long: what follows is not read"


def test_an_incomplete_last_line_is_damage_unless_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(line(1) + line(2)[:9])
    notes: list[str] = []
    with RunFolder(tmp_path).locked():
        assert [each["step"] for each in read_lines(tmp_path, notes)] == [1]
    assert notes == []
    assert [each["step"] for each in read_lines(tmp_path, notes)] == [1]
    assert notes == ["metrics.jsonl: line 2 cannot be read and is left out"]


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder"])
@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl", "stopped.json"])
def test_something_else_than_a_file_is_named(tmp_path, name, kind, caplog):
    replaced(tmp_path / name, kind)
    with within(10):
        try:
            assert [read_metrics(tmp_path), read_sessions(tmp_path), read_stop(tmp_path)]
            said = caplog.text
        except ConfigError as error:
            said = str(error)
    assert f"{tmp_path / name} is {kind}; expected a file" in said


def test_damaged_sessions_and_the_end_are_named(tmp_path, caplog):
    (tmp_path / "sessions.jsonl").write_bytes(b'{"step": 0}\n\xff\n[1]\n{"step": 2}\n')
    (tmp_path / "stopped.json").write_bytes(b'{"step": 3, "find')
    assert [each["step"] for each in read_sessions(tmp_path)] == [0, 2]
    assert read_stop(tmp_path) is None
    for number in (2, 3):
        assert f"sessions.jsonl: line {number} cannot be read and is left out" in caplog.text
    assert f"{tmp_path / 'stopped.json'} cannot be read" in caplog.text


def test_a_folder_that_holds_runs_names_them(tmp_path: Path) -> None:
    """The folder of TRL's outputs, or that of several runs."""
    for name in ("_rlobj", "_rlobj-2", "checkpoint-5"):
        (tmp_path / name).mkdir()
    for name in ("_rlobj", "_rlobj-2"):
        (tmp_path / name / "config.resolved.yaml").write_text("{}")
    runs = f"Runs in it: {tmp_path / '_rlobj'}, {tmp_path / '_rlobj-2'}"
    with pytest.raises(ConfigError, match=f"is not a run: it has no .*{re.escape(runs)}$"):
        read_settings(tmp_path)


def test_error_names_the_path_when_it_is_not_a_run(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "stapo-1").mkdir()
    for name, reason in (
        ("file", "is a file, and a run is a folder"),
        ("stapo-2", "no such folder. Did you mean '.*stapo-1'"),
        ("stapo-1", "has no config.resolved.yaml"),
    ):
        with pytest.raises(ConfigError, match=f"{name} is not a run: .*{reason}"):
            read_run_config(tmp_path / name)
    (tmp_path / "stapo-1" / "config.resolved.yaml").write_text("")
    for inside in ("stapo-1/config.resolved.yaml", "stapo-1/checkpoints"):
        (tmp_path / "stapo-1" / "checkpoints").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"It is inside of a run: .*stapo-1$"):
            read_run_config(tmp_path / inside)


def test_sessions_are_read_past_lines_that_a_crash_has_cut(tmp_path):
    def session(step: int, **changed: list[int]) -> str:
        return json.dumps({"run": "abc", "step": step, "changed": changed})

    cut = session(3, a=[1, 2])[:-9]
    lines = [session(0), session(4, a=[1, 2]), cut, session(9, a=[2, 3]), session(9, b=[1, 2])]
    (tmp_path / "sessions.jsonl").write_text("\n".join(lines))
    assert RunFolder(tmp_path).id == "abc"
    assert len(read_sessions(tmp_path)) == 4
    assert read_changes(tmp_path) == [(4, "a", 1, 2), (9, "b", 1, 2)]
    assert len(RunFolder(tmp_path / "new").id) == 16


@pytest.mark.parametrize(
    ("metrics", "file", "free"),
    [
        (None, None, True),
        ('{"step": 0}\n', None, True),
        ('{"step": 0}\n{"step": 1}\n', None, False),
        ("\0\0\n", None, False),
        (None, "samples/step-000001.parquet", False),
        (None, "records/step-000001.parquet", False),
        (None, "checkpoints/step-000001", False),
    ],
)
def test_a_folder_may_be_used_again_only_before_the_first_step(tmp_path, metrics, file, free):
    run = RunFolder(tmp_path)
    (tmp_path / "config.resolved.yaml").write_text("{}")
    if metrics is not None:
        run.metrics.write_text(metrics)
    if file is not None:
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("")
    with nullcontext() if free else pytest.raises(ConfigError, match="already contains a run"):
        run.refuse_if_taken()
