"""The numbers of an evaluation on screen."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from eval_folders import ungraded_folder
from rich.console import Console

from rlobj.evaluation import regrade, summarise_folder
from rlobj_cli.evaluate.progress import EvaluationScreen


def shown() -> Console:
    return Console(file=io.StringIO(), width=80, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_screen_and_the_markdown_show_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answers = {f"Q{i}": ("4", [said]) for i, said in enumerate("4445")}
    regrade(ungraded_folder(tmp_path / "a", answers))
    screen = shown()
    summarise_folder(tmp_path / "a", callback=EvaluationScreen(screen))
    [row] = [line for line in printed(screen).splitlines() if "avg@n" in line]
    assert row.split()[-1] == "75.0"
    assert "| 75.0 ± " in (tmp_path / "a" / "results.md").read_text()
