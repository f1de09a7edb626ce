"""Folders that one process writes to, and files that a stranger has written."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from limits import replaced, within

from rlobj.base.errors import ConfigError
from rlobj.base.files import append_whole, read_whole
from rlobj.base.folders import is_locked, lock_folder, refuse_links
from rlobj.base.paths import path_of, there


@pytest.mark.parametrize("name", [".lock", "samples", "metrics.jsonl", "wandb/latest"])
def test_a_link_to_elsewhere_is_refused(name: str, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "run", tmp_path / "mine"
    mine.write_text("kept")
    (theirs / "wandb").mkdir(parents=True)
    (theirs / name).symlink_to(mine)
    with pytest.raises(ConfigError, match=f"{name} is a link to .*mine, and files there would be"):
        refuse_links(theirs)


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


@pytest.mark.parametrize("left", [0, 3])
def test_a_full_disk_leaves_a_file_without_a_part_of_what_is_added(
    tmp_path: Path, left: int
) -> None:
    append_whole(file := tmp_path / "file", b"a line\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + left, limits[1]))
    try:
        with pytest.raises(OSError, match=r"disk is full|too large"):
            append_whole(file, b"another line\n", sync=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == b"a line\n"


def test_a_folder_that_is_written_has_files_folders_and_links_inside_only(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "named").symlink_to(run)
    refuse_links(tmp_path / "named")
    os.mkfifo(run / ".lock")
    with pytest.raises(ConfigError, match="lock is a pipe; expected a file"):
        refuse_links(run)
    with within(10):  # it does not block
        assert not is_locked(run)
        with pytest.raises(ConfigError, match="cannot write"), lock_folder(run, "training in"):
            pass


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("~nosuchuser", "'~nosuchuser': there is no such user; ~/ is your own home"),
        ("a" * 256, "cannot be a path: File name too long"),
        ("a/" * 3_000, r"\(6,001 characters\) cannot be a path: File name too long"),
        ("a\0b", r"'a\\x00b' cannot be a path: no path has the character NUL"),
        ("a\ud800", "cannot be a path: .* surrogates not allowed"),
    ],
    ids=["user", "name", "path", "NUL", "surrogate"],
)
def test_a_text_that_can_be_no_path_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        path_of(name)
    if name[0] != "~":
        with pytest.raises(ConfigError, match=message):
            there(Path(name))


def test_a_path_needs_nothing_at_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("no", "file/below", "loop", "loop/below", "äö 中"):
        assert path_of(tmp_path / name) == tmp_path / name
        assert not there(tmp_path / name)
    assert there(tmp_path / "file")
    assert path_of("~") == Path.home()
