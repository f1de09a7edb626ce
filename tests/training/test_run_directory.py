"""The folder of a run: what is refused as one, and how tables are written."""

from __future__ import annotations

import json

import pytest

from rlobj.base.errors import ConfigError
from rlobj.runs.configuration import read_run_config
from rlobj.runs.run_folder import RunFolder
from rlobj.runs.sessions import read_changes, read_sessions


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
