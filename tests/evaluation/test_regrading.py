"""`regrade` grades stored responses again."""

from __future__ import annotations

from eval_folders import ungraded_folder

from rlobj.evaluation import Samples, regrade


def test_regrade_grades_what_a_killed_evaluation_did_not(tmp_path):
    answers = {"a": ("2", ["2", "3"]), "b": ("4", ["4"]), "c": ("6", [])}
    out = ungraded_folder(tmp_path / "out", answers)
    regrade(out)
    found = Samples.open(out)
    assert [grade.correct for grade in found.grades.values()] == [True, False, True]
    assert (out / "results.json").exists()


def test_regrade_lists_the_verdicts_that_changed(tmp_path):
    said = ("no idea", r"\boxed{2/4}", r"\boxed{3}")
    answers = {str(i): ("1/2", [text]) for i, text in enumerate(said)}
    out = ungraded_folder(tmp_path / "out", answers)
    regrade(out)
    again = regrade(out, reward="math")
    [change] = again.changes
    assert (change.key, change.before.correct, change.after.correct) == (
        ("sums", "1", 0),
        False,
        True,
    )
    assert again.settings["benchmarks"]["sums"]["reward"]["kind"] == "math"
    assert regrade(out).changes == ()
