"""Names, paths and texts of presets and runs reach no terminal and no page as they are."""

from __future__ import annotations

import ast
import io
import unicodedata
from pathlib import Path

import pytest
from rich.text import Text
from screens import printed
from tiny import tiny_config

import rlobj_cli
from rlobj.reporting.terminal import Screen
from rlobj.training import run_training

EVIL = "\x1b[31mred\x1b]0;title\x07 \u202e end"
PROGRAM = Path(rlobj_cli.__file__).parent


def unsafe(text: str) -> set[str]:
    """The characters that a terminal or a reader takes for something else than text."""
    return {each for each in text if unicodedata.category(each) in {"Cc", "Cf"}} - {"\n", "\ufeff"}


@pytest.fixture(scope="module")
def run(policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in a folder with a hostile name, of a preset with a hostile text."""
    folder = tmp_path_factory.mktemp("runs") / "[red]r\x1b[2J\u202eun"
    config = tiny_config(policy, training={"steps": 2}, output={"tables_every": 1})
    run_training(config.model_copy(update={"preset": EVIL}), folder)
    return folder


@pytest.mark.parametrize("page", ["inspect", "report"])
def test_a_page_of_a_run_shows_its_name(run: Path, page: str) -> None:
    printed(page, *["--html"][: page == "inspect"], run, columns=300)
    text = (run / f"{page}.html").read_text(encoding="utf-8")
    assert not unsafe(text) - {"\t"}
    assert "r␛[2J‹202e›un" in text


def test_a_screen_shows_control_characters_and_keeps_lines_and_styles() -> None:
    screen = Screen(width=40, record=True, force_terminal=True, file=io.StringIO())
    screen.print(Text(f"{EVIL}\nnext", style="red"), f"[bold]plain[/bold] {EVIL}")
    plain, styled = screen.export_text(clear=False), screen.export_text(styles=True)
    assert not unsafe(plain)
    assert "␛[31mred" in plain
    assert "next" in plain.splitlines()[1]
    assert "\x1b[31m␛[31mred" in styled


def test_every_command_prints_on_a_screen() -> None:
    for path in PROGRAM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("Console", "print"), f"{path}, line {node.lineno}"
