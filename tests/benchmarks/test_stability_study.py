"""The plan, the command and the report of the stability study."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.stability import __main__ as command
from benchmarks.stability import runs
from benchmarks.stability.conditions import CONDITIONS, objective
from benchmarks.stability.outcomes import outcome
from benchmarks.stability.plan import FAMILY, PARTS, Arm, Run
from matplotlib.image import imread
from stability_runs import write_run

pytestmark = pytest.mark.slow


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of the command in this process."""
    monkeypatch.setattr("sys.argv", ["stability", *words])
    try:
        command.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def planted(folder: Path, dynamic: int = 3, static: int = 6) -> None:
    """A study in which dynamic sampling reaches the goal in half of the evaluations.

    Each run has a hundredth of its tokens dropped, and 9 of 10 of these are spurious.
    """
    dropped = {"tokens/dropped": 10.0, "spurious/dropped": 10.0, "spurious/caught": 9.0}
    for part in PARTS.values():
        for run in part.runs():
            at = dynamic if run.arm.sampling == "dynamic" else static
            count = math.ceil(run.arm.steps / 10) + 1
            curve = [0.5] * at + [0.86 + run.seed / 1000] * (count - at)
            write_run(folder, run, curve, more=dropped)


def test_the_plan_has_at_most_110_runs_and_all_that_it_compares() -> None:
    planned = [run for part in PARTS.values() for run in part.runs()]
    assert len({run.folder(Path()) for run in planned}) == len(planned) == 110
    arms = {(name, arm) for name, part in PARTS.items() for arm in part.arms}
    assert all(each in arms for question in FAMILY for pair in question.pairs for each in pair)
    assert {run.arm.condition for run in planned} <= CONDITIONS.keys()


def test_the_random_control_drops_as_many_tokens_as_the_rule() -> None:
    rule = str(objective("stapo*").drop_rule)
    assert str(objective("random*").drop_rule) == f"(advantage > 0).sample(({rule}).count())"


def test_a_run_is_trained_with_its_settings_and_read_again(tmp_path: Path) -> None:
    run = Run("band", replace(Arm.of("gate 0.2", "static"), steps=2), 0)
    told: list[str] = []
    runs.make(tmp_path, [run], 1, lambda _, state: told.append(state))
    assert told == ["running", "done"]
    found = outcome(run, tmp_path)
    assert found is not None
    assert found.steps == [0, 2]
    assert found.tokens[-1] > 2000
    assert 0.1 < found.entropies[0] < 0.5
    assert found.made["cpu_seconds"] > 0
    command.refuse_other(tmp_path, [run])
    with pytest.raises(command.RunError, match=r"training\.steps=2, and the study has 300"):
        command.refuse_other(tmp_path, [Run("band", Arm.of("gate 0.2", "static"), 0)])


def test_the_report_finds_the_planted_difference_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, out = tmp_path / "study", tmp_path / "out"
    planted(study)
    assert call(monkeypatch, "--runs", str(study), "--report", "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert "110 of 110 planned runs ended, 0 of them failed. None is missing." in text
    family = text.partition("## family\n\n")[2].partition("\n## ")[0].splitlines()[2:]
    rows = {cells[1].strip(): cells for line in family if len(cells := line.split("|")) > 4}
    assert len(rows) == len(FAMILY)
    ratio = rows["dynamic sampling / static"][3]
    assert ratio.strip().startswith("× 0.62")  # 50,000 of 80,000 tokens
    assert float(rows["stare / dapo-loss"][4]) > 0.9
    assert "1.00%" in text
    assert "90.00%" in text
    saved = json.loads((out / "stability.json").read_text())
    assert len(saved["runs"]) == 110
    assert (out / "stability.md").read_text() == text.removesuffix("\n")
    for name in ("stability", "stability-decides", "stability-entropy"):
        assert imread(out / f"{name}.png").shape[1] > 1000
