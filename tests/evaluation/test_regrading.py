"""`score` grades responses made elsewhere and survives a kill; `regrade` grades again."""

from __future__ import annotations

import json

import pytest

from rlobj.answers import verifier_version
from rlobj.base.errors import ConfigError
from rlobj.evaluation import (
    EvaluationCallback,
    Samples,
    compare,
    regrade,
    regrading,
    score,
    summarise_folder,
)


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class Notes(EvaluationCallback):
    """Keeps what is noted."""

    def __init__(self):
        self.text = ""

    def noted(self, text, *, warning=False):
        self.text += text + "\n"


def noted(files, out, on=None, data_dir=None):
    """Score the files and give the notes."""
    notes = Notes()
    score(files, on, data_dir=data_dir, reward="exact", out=out, callback=notes)
    return notes.text


def test_problems_without_a_response_are_noted(tmp_path):
    problems = [{"id": i, "problem": f"{i}+1?", "answer": str(i + 1)} for i in range(30)]
    lines(tmp_path / "aime24.jsonl", *problems)
    rows = [{"prompt": f"{i}+1?", "response": [f"{i + 1}"] * (i != 7)} for i in range(2, 30)]
    file = lines(tmp_path / "r.jsonl", *rows)
    text = "3 of 30 problems have no response and count in no number: aime24-0, aime24-1, aime24-7"
    assert f"aime24: {text}" in noted([file], tmp_path / "out", "aime24", tmp_path)
    settings = Samples.open(tmp_path / "out").settings()
    assert settings["benchmarks"]["aime24"]["notes"] == [text]
    file = lines(tmp_path / "few.jsonl", rows[0])
    assert "aime24-1, aime24-3, aime24-4, aime24-5, ..." in noted(
        [file], tmp_path / "few", "aime24", tmp_path
    )


def three_problems(path):
    return lines(
        path,
        {"id": "a", "prompt": "1+1?", "answer": "2", "response": ["2", "3"]},
        {"id": "b", "prompt": "2+2?", "answer": "4", "response": "4"},
        {"id": "c", "prompt": "3+3?", "answer": "6", "response": []},
    )


def test_a_score_killed_before_its_grades_are_written_is_completed_by_regrade(
    tmp_path, monkeypatch
):
    file, out = three_problems(tmp_path / "r.jsonl"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(regrading, "grade_stored", interrupted)
        with pytest.raises(KeyboardInterrupt):
            noted([file], out)
    with pytest.raises(ConfigError, match=f"finish or repeat its grading.*regrade {out}"):
        noted([file], out)
    regrade(out)
    found = Samples.open(out)
    assert [grade.correct for grade in found.grades.values()] == [True, False, True]
    assert (out / "results.json").exists()


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_score_does_not_overwrite_what_it_reads(tmp_path):
    file = three_problems(tmp_path / "samples.jsonl")
    with pytest.raises(ConfigError, match="has files, but is not an evaluation"):
        noted([file], tmp_path)
    assert len(file.read_text().splitlines()) == 3


def test_a_score_in_memory_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = score(three_problems(tmp_path / "r.jsonl"), reward="exact", model="m")
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]
    assert (result.model, result.path, result.accuracies) == ("m", None, {"r": 0.75})


def test_regrade_lists_the_verdicts_that_changed(tmp_path):
    said = ("no idea", r"\boxed{2/4}", r"\boxed{3}")
    rows = [
        {"id": i, "prompt": f"{i}?", "answer": "1/2", "response": r} for i, r in enumerate(said)
    ]
    score(lines(tmp_path / "r.jsonl", *rows), reward="exact", out=tmp_path / "out")
    again = regrade(tmp_path / "out", reward="math")
    [change] = again.changes
    assert (change.key, change.before.correct, change.after.correct) == (("r", "1", 0), False, True)
    assert again.settings["benchmarks"]["r"]["reward"]["kind"] == "math"
    assert regrade(tmp_path / "out").changes == ()


def of_another_version(folder):
    """Make the grades of a folder those of an older verifier."""
    file = folder / "grades.jsonl"
    file.write_text(file.read_text().replace(verifier_version(), "0123456789"))


def test_grades_and_results_name_the_version_of_the_verifier(tmp_path):
    out, file = tmp_path / "out", three_problems(tmp_path / "r.jsonl")
    score(file, out=out)
    grades = [json.loads(line) for line in (out / "grades.jsonl").read_text().splitlines()]
    assert [grade["verifier"] for grade in grades] == [verifier_version()] * 3
    results = json.loads((out / "results.json").read_text())
    assert results["settings"]["verifier"] == verifier_version()
    assert f"verifier {verifier_version()}" in (out / "results.md").read_text()
    assert verifier_version() in (out / "report.html").read_text()
    score(file, reward="exact", out=tmp_path / "exact")
    assert "verifier" not in (tmp_path / "exact" / "results.json").read_text()


def test_grades_of_another_version_are_noted_until_they_are_graded_again(tmp_path):
    out = tmp_path / "out"
    score(three_problems(tmp_path / "r.jsonl"), out=out)
    notes = Notes()
    summarise_folder(out, callback=notes)
    assert "version" not in notes.text
    of_another_version(out)
    summarise_folder(out, callback=notes)
    assert f"(0123456789) than the present one ({verifier_version()})" in notes.text
    assert f"rlobj eval regrade {out}" in notes.text
    assert [grade.verifier for grade in Samples.open(out).grades.values()] == ["0123456789"] * 3
    regrade(out)
    assert json.loads((out / "results.json").read_text())["settings"]["verifier"] != "0123456789"


def test_a_killed_process_does_not_bring_old_grades_back(tmp_path):
    out = tmp_path / "out"
    score(three_problems(tmp_path / "r.jsonl"), reward="exact", out=out)
    for kind in ("samples", "grades"):
        file = out / f"{kind}.jsonl"
        first, *others = file.read_text().splitlines(keepends=True)
        file.write_text(first)
        text = "".join(others).replace('"correct": true', '"correct": false')
        (out / f"{kind}.1.jsonl").write_text(text)
    expected = regrade(out).rows
    assert [grade.correct for grade in Samples.open(out).grades.values()] == [True, False, True]
    assert summarise_folder(out).rows == expected
    assert len(expected) == 2


def test_compare_warns_of_different_versions_of_the_verifier(tmp_path):
    file, a, b = three_problems(tmp_path / "r.jsonl"), tmp_path / "a", tmp_path / "b"
    score(file, out=a)
    score(file, out=b)
    assert "verifier" not in compare(a, b).to_markdown()
    of_another_version(b)
    text = compare(a, b).to_markdown()
    assert f"r.verifier: '{verifier_version()}' in A, '0123456789' in B" in text.replace("\\", "")
    assert "rlobj eval regrade" in text
