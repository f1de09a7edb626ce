"""The numbers of an evaluation on screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from screens import console, printed, text_of
from stored_evaluations import stored

from rlobj.evaluation import regrade, summarise_folder
from rlobj_cli.screen.evaluating import EvaluationScreen


def test_the_screen_and_the_markdown_show_the_same_numbers(tmp_path: Path) -> None:
    stored(tmp_path / "a", {"4": ["4", "4", "4", "5"]})
    screen = console()
    summarise_folder(tmp_path / "a", callback=EvaluationScreen(screen))
    [row] = [line for line in text_of(screen).splitlines() if "avg@n" in line]
    assert row.split() == ["avg@n", "75.0"]
    assert "| avg@n | 75.0 |" in (tmp_path / "a" / "results.md").read_text()


def test_show_only_shows_also_before_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    stored(folder, {"4": ["4", "5"]})
    for name in ("results.json", "results.md", "report.html"):  # as if it were interrupted
        (folder / name).unlink()
    grades = (folder / "grades.jsonl").read_text().splitlines(keepends=True)
    (folder / "grades.jsonl").write_text(grades[0])
    before = {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())}
    text = printed("eval", "show", folder)
    assert "Not finished: r: 1 of 2 responses" in text
    assert "avg@n" in text
    assert "wrote" not in text
    assert {path: path.stat().st_mtime_ns for path in (folder, *folder.iterdir())} == before
    assert "wrote results.json" in printed("eval", "regrade", folder)
    assert (tmp_path / "a-exact" / "report.html").exists()


def test_what_another_reward_changes_stands_above_the_results(tmp_path: Path) -> None:
    stored(tmp_path / "a", {"4": ["4", r"\boxed{4}"]})
    screen = console()
    regrade(tmp_path / "a", reward="math", callback=EvaluationScreen(screen))
    text = text_of(screen)
    assert 0 <= text.index("2 responses graded again, 2 grades changed") < text.index("avg@n")
    rows = [line.split() for line in text.splitlines()]
    assert ["right", "to", "wrong", "1"] in rows
    assert ["wrong", "to", "right", "1"] in rows
    assert f"report.html to {tmp_path / 'a-math'}" in text


def test_what_is_missing_stands_above_the_results(tmp_path: Path) -> None:
    result = stored(tmp_path / "a", {"4": ["4"]})
    assert result is not None
    screen = console()
    more = replace(result.benchmarks["r"], settings={"problems": 1, "samples": 2})
    EvaluationScreen(screen).finished(replace(result, benchmarks={"r": more}))
    text = text_of(screen)
    assert 0 <= text.index("Not finished: r: 1 of 2") < text.index("avg@n")
