"""Folders that one process writes to, and files that a stranger has written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from limits import replaced, within

from rlobj.base.errors import ConfigError
from rlobj.base.files import is_locked, lock_folder, read_whole, refuse_links


@pytest.mark.parametrize("name", [".lock", "samples", "metrics.jsonl", "wandb/latest"])
def test_a_link_to_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "run", tmp_path / "mine"
    mine.write_text("kept")
    (theirs / "wandb").mkdir(parents=True)
    (theirs / name).symlink_to(mine)
    with pytest.raises(ConfigError, match=f"{name} is a link to .*mine, and files there would be"):
        refuse_links(theirs)


def test_links_inside_of_a_folder_stay(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "named").symlink_to(run)
    refuse_links(tmp_path / "named")


def test_one_process_has_a_lock_which_leaves_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("kept")
    assert not is_locked(tmp_path)
    with lock_folder(tmp_path, "training in"):
        assert (tmp_path / ".lock").read_text() == "kept"
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError), lock_folder(tmp_path, "training in"):
            pass
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("kind", ["a pipe", "a device", "a folder", "a large file"])
def test_only_a_file_of_a_bounded_size_is_read(tmp_path: Path, kind: str) -> None:
    replaced(tmp_path / "file", kind)
    expected = "more than 67,108,864 bytes" if kind == "a large file" else f"is {kind}; expected"
    with within(10, 1 << 30), pytest.raises(OSError, match=expected):
        read_whole(tmp_path / "file")


def test_a_lock_that_is_a_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with within(10):
        assert not is_locked(tmp_path)
        with pytest.raises(ConfigError, match="cannot write"), lock_folder(tmp_path, "training in"):
            pass


def test_a_folder_that_is_written_has_files_and_folders_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    refuse_links(tmp_path)
    os.mkfifo(tmp_path / "a" / "pipe")
    with pytest.raises(ConfigError, match="pipe is a pipe; expected a file"):
        refuse_links(tmp_path)
