"""`regrade` grades stored responses again, and `compare` says which grades changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stored_evaluations import stored

import rlobj
from rlobj.answers import verifier_version
from rlobj.base.errors import ConfigError
from rlobj.evaluation import compare, regrade, summarise_folder
from rlobj.runs.evaluation_samples import Samples

ROWS = {
    "1/2": [r"\boxed{0.5}", r"\boxed{1/3}"],
    "4.5e33": [r"\boxed{4.5 \times 10^{33}}", r"\boxed{5}"],  # math-verify reads e as Euler's e
    "12": ["So 3 + 9 = 12, and hence", r"\boxed{12}"],  # it takes any number of the text
}
SUMS = {"2": ["2", "3"], "4": ["4"]}


def files(folder: Path) -> dict[str, bytes]:
    """The content of the files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_another_reward_grades_into_a_new_folder_and_is_compared_with_the_first(
    tmp_path: Path,
):
    out = tmp_path / "out"
    stored(out, ROWS, "math")
    before = files(out)
    again = regrade(out, reward="math_verify")
    assert files(out) == before
    assert again.path == tmp_path / "out-math_verify"
    assert again.accuracy == summarise_folder(again.path).accuracy == 0.5
    assert again.settings["benchmarks"]["r"]["reward"]["kind"] == "math_verify"
    assert again.settings["sessions"][-1]["from"] == str(out)
    for name in ("samples.jsonl", "problems.jsonl"):
        assert (again.path / name).read_bytes() == before[name]
    comparison = compare(out, again.path)
    lines = comparison.to_markdown().splitlines()
    assert "Changed grades (2 of 2):" in lines
    assert "| r: 12? | 0 | 12 | 12 | wrong (no answer) | right (math-verify) |" in lines
    changes = comparison.benchmarks[0].changes
    assert {change.id: change.difference for change in changes} == {"4.5e33": 0.5, "12": -0.5}
    shares = [line for line in lines if line.startswith("| r: ")][:2]
    assert shares == ["| r: 4.5e33? | 50.0 | 0.0 | +50.0 |", "| r: 12? | 50.0 | 100.0 | −50.0 |"]
    regrade(again.path, reward="math", out=tmp_path / "back")
    assert (tmp_path / "back" / "grades.jsonl").read_bytes() == before["grades.jsonl"]
    text = compare(out, tmp_path / "back").to_markdown()
    assert "Changed grades" not in text
    stored(tmp_path / "b", ROWS | {"12": ["", ""]}, "math")
    assert "Changed grades" not in compare(out, tmp_path / "b").to_markdown()


def test_each_regrading_has_a_folder_of_its_own(tmp_path: Path):
    out = tmp_path / "out"
    stored(out, SUMS)
    (tmp_path / "mine.py").write_text(
        "def one(response, answer, **row): return 1.0\n"
        "def none(response, answer, **row): return 0.0\n"
    )
    one = regrade(out, reward=f"{tmp_path / 'mine.py'}:one")
    none = regrade(out, reward=f"{tmp_path / 'mine.py'}:none", out=tmp_path / "none")
    assert one.path.name == "out-custom"
    assert [summarise_folder(each.path).reward for each in (one, none)] == [1.0, 0.0]
    with pytest.raises(ConfigError, match="out-custom has an evaluation already"):
        regrade(out, reward=f"{tmp_path / 'mine.py'}:none")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="has files, but is not an evaluation"):
        regrade(out, out=tmp_path / "other")


@pytest.mark.parametrize("at", ["write_problems", "add", "grade", "write_settings"])
def test_a_killed_regrading_leaves_no_half_of_an_evaluation(tmp_path: Path, monkeypatch, at: str):
    out, target = tmp_path / "out", tmp_path / "out-math"
    stored(out, SUMS)
    before = files(out)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        real = getattr(Samples, at)
        patched.setattr(Samples, at, lambda s, *a: killed() if s.path == target else real(s, *a))
        with pytest.raises(KeyboardInterrupt):
            regrade(out, reward="math")
    assert files(out) == before
    with pytest.raises(ConfigError, match="is not an evaluation"):
        summarise_folder(target)
    assert regrade(out, reward="math", out=tmp_path / "new").path == tmp_path / "new"


def test_a_reward_of_the_same_kind_keeps_its_other_settings(tmp_path: Path):
    out = tmp_path / "out"
    stored(out, {"5": ["2+3=5#5"], "7": ["5#5"]}, {"kind": "exact", "after": "#"})
    assert regrade(out, reward="exact").accuracy == 0.5


def test_twenty_changed_grades_are_listed_without_control_characters(tmp_path: Path):
    stored(tmp_path / "open", {r"\Re(5)": [r"\boxed{5}", "5"]}, "math")
    text = compare(tmp_path / "open", regrade(tmp_path / "open", reward="exact")).to_markdown()
    assert "Changed grades (" in text
    out = tmp_path / "out"
    stored(out, {"4\x1b[31m": ["4\x1b[31m"] * 25})
    grades = (out / "grades.jsonl").read_text()
    (out / "grades.jsonl").write_text(grades.replace('"correct": true', '"correct": false'))
    text = compare(out, regrade(out)).to_markdown()
    listed = text.partition("Changed grades (20 of 25):")[2]
    assert listed.count("| 4␛[31m | 4␛[31m | wrong (") == 20
    assert "\x1b" not in listed


# The version of the verifier.


def of_another_version(folder: Path) -> None:
    """Make the grades of a folder those of an older verifier."""
    file = folder / "grades.jsonl"
    file.write_text(file.read_text().replace(verifier_version(), "0123456789"))


def test_grades_of_another_version_differ_until_they_are_graded_again(tmp_path: Path):
    out, other = tmp_path / "out", tmp_path / "other"
    stored(out, SUMS, "math")
    stored(other, SUMS, "math")
    assert f"verifier {verifier_version()}" in (out / "results.md").read_text()
    assert verifier_version() in (out / "report.html").read_text()
    assert "verifier" not in compare(other, out).to_markdown()
    of_another_version(out)
    text = compare(other, out).to_markdown().replace("\\", "")
    assert f"r.verifier: '{verifier_version()}' in A, '0123456789' in B" in text
    assert [grade.verifier for grade in Samples.open(out).grades.values()] == ["0123456789"] * 3
    again = json.loads((regrade(out).path / "results.json").read_text())
    assert again["settings"]["verifier"] == verifier_version()


def test_a_function_is_the_same_from_its_own_folder_and_from_another(tmp_path, monkeypatch) -> None:
    (tmp_path / "sums.py").write_text(
        "def right(r, a, **_): return {'reward': 1, 'correct': r == a}"
    )
    stored(tmp_path / "out", SUMS)
    monkeypatch.chdir(tmp_path)
    for name, target in {"a": "sums.py:right", "b": f"{tmp_path}/sums.py:right"}.items():
        graded = regrade("out", reward=target, out=name)
        reward = graded.settings["benchmarks"]["r"]["reward"]
        assert reward["target"] == f"{tmp_path}/sums.py:right"
    assert "Settings that differ" not in compare("a", "b").to_markdown()
    rows = [{"problem": "1+1=", "answer": "2"}]
    asked = {"n": 1, "max_tokens": 2, "reward": "sums.py:right"}
    first = rlobj.evaluate("embedded", rows, **asked)
    asked["reward"] = str(tmp_path / asked["reward"])
    assert compare(first, rlobj.evaluate("embedded", rows, **asked)).settings == ()
