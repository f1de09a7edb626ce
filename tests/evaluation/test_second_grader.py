"""`regrade_with`: the real math-verify, beside the evaluation's verdicts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rlobj.base.errors import ConfigError
from rlobj.data import Problem
from rlobj.evaluation import regrade_with, score
from rlobj.evaluation.second_grader import MathVerify

ROWS = [
    ("1/2", [r"\boxed{0.5}", r"\boxed{1/3}"]),
    ("4.5e33", [r"\boxed{4.5 \times 10^{33}}", r"\boxed{5}"]),  # math-verify reads e as Euler's e
    ("12", ["So 3 + 9 = 12, and hence", r"\boxed{12}"]),  # it takes any number of the text
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"prompt": f"{gold}?", "answer": gold, "response": said} for gold, said in ROWS]
    file = tmp_path / "r.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    score(file, out=tmp_path / "out")
    return tmp_path / "out"


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


def test_the_verdicts_of_math_verify_are_reported_beside_ours(folder: Path) -> None:
    before = contents(folder)
    found = regrade_with(folder, "math-verify")
    assert contents(folder) == before
    different = [(each.gold, each.sample, each.ours, each.theirs) for each in found.different]
    assert different == [("4.5e33", 0, True, False), ("12", 0, False, True)]
    assert found.benchmarks["r"] == {
        "responses": 6,
        "ours": 0.5,
        "theirs": 0.5,
        "either": pytest.approx(2 / 3),
        "only_ours": 1,
        "only_theirs": 1,
        "undecided": 0,
    }
    stored = json.loads((folder / "regraded" / "math-verify.json").read_text(encoding="utf-8"))
    assert stored["benchmarks"] == found.benchmarks
    assert stored["versions"]["math-verify"]
    assert len(stored["verdicts"]) == 6


def test_any_gold_is_right_and_a_grader_that_hangs_is_stopped_at_the_deadline() -> None:
    bomb, five = Problem("1", "?", "5"), Problem("2", "?", "5")
    several = Problem("3", "?", "5", {"alternatives": ["5", "6"]})
    with MathVerify(deadline=1.0, workers=1) as grader:
        assert grader.grade([(several, r"\boxed{6}")]) == [(True, "")]  # it has started
        begin = time.monotonic()
        found = grader.grade([(bomb, r"\boxed{9^{9^{9^{9}}}}"), (five, r"\boxed{5}")])
    assert found == [(None, "timeout"), (True, "")]
    assert time.monotonic() - begin < 30


def test_another_grader_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="grader=trl: expected math-verify"):
        regrade_with(folder, "trl")
