"""Folders that one process writes to, and files that are written whole or not at all."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.files import append_whole
from rlobj.base.folders import lock_folder, refuse_links
from rlobj.base.paths import path_of, there


@pytest.mark.parametrize("name", [".lock", "wandb/latest"])
def test_a_link_to_elsewhere_is_refused_and_one_inside_is_not(name: str, tmp_path: Path) -> None:
    theirs, mine = tmp_path / "run", tmp_path / "mine"
    mine.write_text("kept")
    (theirs / "wandb" / "run-1").mkdir(parents=True)
    (theirs / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "named").symlink_to(theirs)
    refuse_links(tmp_path / "named")
    (theirs / name).symlink_to(mine)
    with pytest.raises(ConfigError, match=f"{name} is a link out of"):
        refuse_links(theirs)


def test_one_process_has_a_lock_which_leaves_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("kept")
    with lock_folder(tmp_path, "training in"):
        assert (tmp_path / ".lock").read_text() == "kept"
        with (
            pytest.raises(ConfigError, match="another process is training in"),
            lock_folder(tmp_path, "training in"),
        ):
            pass
    with lock_folder(tmp_path, "training in"):
        pass


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


def test_a_path_needs_nothing_at_it_and_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("no", "file/below", "äö 中"):
        assert path_of(tmp_path / name) == tmp_path / name
        assert not there(tmp_path / name)
    assert there(tmp_path / "file")
    assert path_of("~") == Path.home()
    with pytest.raises(ConfigError, match=r"no such path: .*File name too long: 'aaa"):
        path_of("a" * 256)
