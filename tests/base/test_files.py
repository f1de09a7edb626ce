"""Folders that one process writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.files import lock_folder, refuse_links


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


def test_a_lock_leaves_the_content_of_its_file(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("kept")
    with lock_folder(tmp_path, "training in"):
        assert (tmp_path / ".lock").read_text() == "kept"
