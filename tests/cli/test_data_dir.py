"""`--data-dir`: the folder that stands in for the hub."""

from __future__ import annotations

import os
from pathlib import Path

from screens import printed


def test_a_data_dir_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command, name, reason in (
        (["train"], "file", "is a file"),
        (["eval", "embedded"], "gone", "does not exist"),
    ):
        text = printed(*command, "--data-dir", tmp_path / name, code=2)
        assert reason in " ".join(text.split()).replace(" │ │ ", " ")


def test_data_dir_is_in_the_environment_while_the_command_runs(tmp_path, monkeypatch):
    monkeypatch.delenv("RLOBJ_DATA_DIR", raising=False)
    found: list[str | None] = []
    seen = lambda *_, **__: found.append(os.environ.get("RLOBJ_DATA_DIR"))  # noqa: E731
    monkeypatch.setattr("rlobj.train", seen)
    printed("train", "--preset", "stapo", "--data-dir", tmp_path)
    assert found == [str(tmp_path)]
    assert "RLOBJ_DATA_DIR" not in os.environ  # no other command of this process is told
