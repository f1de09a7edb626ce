"""The folder of a run: what is refused as one, and files in it that no run has written."""

from __future__ import annotations

import math
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from rlobj import installation
from rlobj.base.errors import ConfigError, DataError
from rlobj.runs.configuration import (
    read_changes,
    read_run_config,
    read_sessions,
    read_stop,
)
from rlobj.runs.metrics import read_metrics
from rlobj.runs.run_folder import RunFolder

DAMAGED = (b"\x8f\x03{]", b"\0" * 500, b'{"step": 4, "\xff\xfe": 1}', b"", b"[4]", b"[" * 100_000)


@pytest.mark.parametrize("name", ["metrics.jsonl", "sessions.jsonl"])
@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_line_is_an_error_with_its_number(tmp_path: Path, name: str, damage: bytes):
    good = b'{"step": 1}\n'
    (tmp_path / name).write_bytes(good + damage + b"\n" + good)
    with pytest.raises(DataError, match=rf"{name}:2: damaged, or not JSON"):
        read_metrics(tmp_path) if name == "metrics.jsonl" else read_sessions(tmp_path)


def test_a_last_line_that_a_kill_has_cut_is_left_out_and_written_over(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.add_session(0, {})
    run.append({"step": 1, "a": 0.5, "b": math.nan})
    for file in (run.metrics, tmp_path / "sessions.jsonl"):
        file.write_bytes(file.read_bytes() + b'{"step": 2, "a')
    assert run.lines() == [{"step": 1, "a": 0.5, "b": None}]
    run.truncate(1)
    run.append({"step": 2})
    run.add_session(1, {"a": (1, 2)})
    assert [line["step"] for line in run.lines()] == [1, 2]
    assert [session["step"] for session in read_sessions(tmp_path)] == [0, 1]


def test_changes_that_a_later_start_went_back_to_are_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, name in ((0, "x"), (4, "a"), (9, "a"), (9, "b")):
        run.add_session(step, {name: (1, 2)} if step else {})
    assert read_changes(tmp_path) == [(4, "a", 1, 2), (9, "b", 1, 2)]


def test_the_end_of_a_run_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    assert read_stop(tmp_path) is None
    (tmp_path / "stopped.json").write_bytes(b'{"step": 3, "find')
    with pytest.raises(ConfigError, match=r"cannot read .*stopped\.json"):
        read_stop(tmp_path)


def test_a_folder_that_holds_runs_names_them(tmp_path: Path) -> None:
    """The folder of TRL's outputs, or that of several runs."""
    for name in ("_rlobj", "_rlobj-2", "checkpoint-5"):
        (tmp_path / name).mkdir()
    for name in ("_rlobj", "_rlobj-2"):
        (tmp_path / name / "config.resolved.yaml").write_text("{}")
    runs = f"Runs in it: {tmp_path / '_rlobj'}, {tmp_path / '_rlobj-2'}"
    with pytest.raises(ConfigError, match=f"is not a run: it has no .*{re.escape(runs)}$"):
        read_run_config(tmp_path)


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


@pytest.mark.parametrize(
    ("metrics", "file", "free"),
    [
        (None, None, True),
        ('{"step": 0}\n', None, True),
        ('{"step": 0}\n{"step": 1}\n', None, False),
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


@pytest.mark.parametrize(
    ("typed", "recorded"),
    [
        (["/venv/bin/rlobj", "train", "--set", "objective.drop=prob < 0.1"], None),
        (["/src/rlobj_cli/__main__.py", "resume", "runs/a"], "rlobj resume runs/a"),
        (["/home/me/train.py", "--wandb-key", "s3cr3t"], "/home/me/train.py"),
    ],
)
def test_a_session_has_the_command_and_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], recorded: str | None
) -> None:
    monkeypatch.setattr("sys.argv", typed)
    RunFolder(tmp_path).add_session(0, {})
    [session] = read_sessions(tmp_path)
    expected = "rlobj train --set 'objective.drop=prob < 0.1'"
    assert session["command"] == (recorded or expected)
    assert (session["commit"] is not None) == (Path(__file__).parents[2] / ".git").exists()
    monkeypatch.setenv("RLOBJ_COMMAND", "rlobj train --processes 2")  # of another rank
    RunFolder(tmp_path).add_session(1, {})
    assert read_sessions(tmp_path)[1]["command"] == "rlobj train --processes 2"


def test_the_commit_is_that_of_the_checkout_and_says_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "src" / "rlobj" / "installation.py"
    code.parent.mkdir(parents=True)
    code.touch()
    monkeypatch.setattr(installation, "__file__", str(code))
    assert installation.commit() is None  # installed from a wheel
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = installation.commit()
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    code.write_text("1")
    assert installation.commit() == f"{commit}-dirty"
    monkeypatch.setenv("PATH", "")
    assert installation.commit() is None
