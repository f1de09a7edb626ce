"""`rlobj eval score` grades what was made elsewhere into a folder, and survives a kill."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rlobj.base.errors import ConfigError
from rlobj.evaluation import EvaluationDirectory
from rlobj_cli.evaluate import regrading as grading


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def score(files, out, on=None, data_dir=None):
    screen = io.StringIO()
    console = Console(file=screen, width=300)
    grading.score_files(console, files, on, data_dir, "exact", None, [], out)
    return screen.getvalue()


def test_problems_without_a_response_are_noted(tmp_path):
    problems = [{"id": i, "problem": f"{i}+1?", "answer": str(i + 1)} for i in range(30)]
    lines(tmp_path / "aime24.jsonl", *problems)
    rows = [{"problem": f"{i}+1?", "response": [f"{i + 1}"] * (i != 7)} for i in range(2, 30)]
    file = lines(tmp_path / "r.jsonl", *rows)
    text = "3 of 30 problems have no response and count in no number: aime24-0, aime24-1, aime24-7"
    assert f"aime24: {text}" in score([file], tmp_path / "out", "aime24", tmp_path)
    settings = EvaluationDirectory.open(tmp_path / "out").settings()
    assert settings["benchmarks"]["aime24"]["notes"] == [text]
    file = lines(tmp_path / "few.jsonl", rows[0])
    assert "aime24-1, aime24-3, aime24-4, aime24-5, ..." in score(
        [file], tmp_path / "few", "aime24", tmp_path
    )


def three_problems(path):
    return lines(
        path,
        {"id": "a", "problem": "1+1?", "answer": "2", "response": ["2", "3"]},
        {"id": "b", "problem": "2+2?", "answer": "4", "response": "4"},
        {"id": "c", "problem": "3+3?", "answer": "6", "response": []},
    )


def test_killed_before_its_settings_a_score_is_made_again(tmp_path, monkeypatch):
    file, out = three_problems(tmp_path / "r.jsonl"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(EvaluationDirectory, "write_settings", interrupted)
        with pytest.raises(KeyboardInterrupt):
            score([file], out)
    assert (out / "samples.jsonl").exists()
    assert "1 of 3 problems have no response and count in no number: c" in score([file], out)
    assert len((out / "samples.jsonl").read_text().splitlines()) == 3
    found = EvaluationDirectory.open(out)
    assert [grade.correct for grade in found.grades.values()] == [True, False, True]


def test_killed_before_its_grades_a_score_is_completed_by_regrade(tmp_path, monkeypatch):
    file, out = three_problems(tmp_path / "r.jsonl"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(grading, "grade_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            score([file], out)
    with pytest.raises(ConfigError, match=f"stopped before all was graded.*regrade {out}"):
        score([file], out)
    grading.regrade_all(Console(file=io.StringIO()), EvaluationDirectory.open(out), {})
    found = EvaluationDirectory.open(out)
    assert [grade.correct for grade in found.grades.values()] == [True, False, True]
    assert (out / "results.json").exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_score_does_not_overwrite_what_it_reads(tmp_path):
    file = three_problems(tmp_path / "samples.jsonl")
    with pytest.raises(ConfigError, match="would be overwritten"):
        score([file], tmp_path)
    assert len(file.read_text().splitlines()) == 3
