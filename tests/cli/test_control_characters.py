"""Names, paths and texts of presets and runs reach no terminal and no page as they are."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
from rich.text import Text
from screens import printed, shows
from tiny import tiny_config

from rlobj.reporting.terminal import Screen
from rlobj.training import run_training

EVIL = "\x1b[31mred\x1b]0;title\x07 \u202e end"
SHOWN = "␛[31mred␛]0;title␇ ‹202e› end"


def unsafe(text: str) -> set[str]:
    """The characters that a terminal or a reader takes for something else than text."""
    return {each for each in text if unicodedata.category(each) in {"Cc", "Cf"}} - {"\n", "\ufeff"}


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preset whose name, summary, paper and comments are hostile."""
    file = tmp_path_factory.mktemp("presets") / "e\x1b[2J\u202evil.yaml"
    escaped = EVIL.encode("unicode_escape").decode()
    lines = [f'summary: "{escaped}"', f'paper: "{escaped}"', "# \u202e comment", "base: stapo"]
    file.write_text("\n".join(lines))
    return file


@pytest.fixture(scope="module")
def run(policy, preset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run in a folder with a hostile name."""
    folder = tmp_path_factory.mktemp("runs") / "[red]r\x1b[2J\u202eun"
    output = {"tables_every": 1}
    config = tiny_config(policy, training={"steps": 2}, output=output)
    run_training(config.model_copy(update={"preset": str(preset)}), folder)
    return folder


@pytest.mark.parametrize(
    "words", [["explain"], ["presets", "check"], ["presets", "show"], ["presets", "diff", "grpo"]]
)
def test_presets_show_their_texts_and_run_none(preset: Path, words: list[str]) -> None:
    text = printed(*words, preset, columns=200)
    assert not unsafe(text)
    if words[-1] in ("explain", "check"):
        assert shows(f"{SHOWN}: {SHOWN}", text)
        assert shows("e␛[2J‹202e›vil.yaml", text)


def test_a_dry_run_shows_the_texts_of_its_preset(preset: Path) -> None:
    text = printed("train", "--preset", preset, "--data", "max-digits", "--dry-run", columns=200)
    assert not unsafe(text)
    assert shows(SHOWN, text)


@pytest.mark.parametrize(
    "words",
    [
        ["inspect"],
        ["inspect", "--where", "prob < 0.9"],
        ["inspect", "--html"],
        ["diagnose"],
        ["replay", "--preset", "grpo"],
        ["replay", "--rule", "prob < 0.5"],
        ["report"],
        ["resume"],
    ],
)
def test_screens_and_pages_of_a_run_show_its_name(run: Path, words: list[str]) -> None:
    text = printed(words[0], *words[1:], run, columns=300)
    assert not unsafe(text)
    assert "[red]r␛[2J‹202e›un" in text
    for page in run.glob("*.html"):
        assert not unsafe(page.read_text(encoding="utf-8")) - {"\t"}


def test_a_screen_shows_control_characters_and_keeps_lines_and_styles() -> None:
    screen = Screen(width=40, record=True, force_terminal=True, file=io.StringIO())
    screen.print(Text(f"{EVIL}\nnext", style="red"), f"[bold]plain[/bold] {EVIL}")
    plain, styled = screen.export_text(clear=False), screen.export_text(styles=True)
    assert not unsafe(plain)
    assert "␛[31mred" in plain
    assert "next" in plain.splitlines()[1]
    assert "\x1b[31m␛[31mred" in styled
