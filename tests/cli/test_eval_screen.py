"""The numbers of an evaluation on screen."""

from __future__ import annotations

from pathlib import Path

from screens import console, printed, text_of
from stored_evaluations import stored

from rlobj.evaluation import summarise_folder
from rlobj.evaluation.progress import EvaluationProgress


def test_the_screen_and_the_markdown_show_the_same_numbers(tmp_path: Path) -> None:
    stored(tmp_path / "a", {"4": ["4", "4", "4", "5"]})
    screen = console()
    summarise_folder(tmp_path / "a", callback=EvaluationProgress(screen, results=True))
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


def test_grading_again_names_the_command_that_lists_the_grades_that_changed(tmp_path: Path) -> None:
    old, new = tmp_path / "a", tmp_path / "a-math"
    stored(old, {"4": ["4", r"\boxed{4}"]})
    text = printed("eval", "regrade", old, "--reward", "math", columns=500)
    assert text.index("avg@n") < text.index(f"report.html to {new}")
    assert f"to see which grades changed: rlobj eval compare {old} {new}\n" in text
    assert "Changed grades (2 of 2)" in printed("eval", "compare", old, new, columns=500)
