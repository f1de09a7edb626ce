"""Folders that one process writes to."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlobj.base.errors import ConfigError
from rlobj.base.files import lock_folder


@pytest.mark.parametrize("name", [".lock", "samples", "metrics.jsonl", "wandb/latest"])
def test_a_folder_with_a_link_to_elsewhere_is_refused_before_anything_changes(
    name: str, tmp_path: Path
) -> None:
    theirs, mine = tmp_path / "run", tmp_path / "mine"
    mine.write_text("kept")
    (theirs / "wandb").mkdir(parents=True)
    (theirs / name).symlink_to(mine)
    with (
        pytest.raises(ConfigError, match=f"{name} is a link to .*mine, and files there would be"),
        lock_folder(theirs, "training in"),
    ):
        pass
    assert mine.read_text() == "kept"


def test_links_inside_of_a_folder_stay(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "wandb" / "run-1").mkdir(parents=True)
    (run / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "named").symlink_to(run)
    with lock_folder(tmp_path / "named", "training in"):
        assert (run / ".lock").exists()
