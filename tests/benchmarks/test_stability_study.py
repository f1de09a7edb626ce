"""The plan, the command and the report of the stability study."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.stability import __main__ as command
from benchmarks.stability import report, runs
from benchmarks.stability.conditions import BASE, CONDITIONS, objective
from benchmarks.stability.outcomes import outcome
from benchmarks.stability.plan import FAMILY, PARTS, RATES, STUDIED, Arm, Run
from matplotlib.image import imread
from stability_runs import write_run

from rlobj.config.layers import flattened, layers_of, nested
from rlobj.config.run_config import build_config, settings_of

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


def test_arms_of_one_learning_rate_differ_in_their_sampling_only() -> None:
    def settings(arm: Arm) -> dict[str, Any]:
        given = [(name, nested(name, value)) for name, value in arm.settings(0).items()]
        own = [("data", {"data": {"source": "scratchpad"}}), *given]
        return flattened(settings_of(build_config(layers_of(None, own))))

    static = settings(Arm(BASE, "static", 5e-4))
    found = {
        how: {k for k, v in settings(Arm(BASE, how, 5e-4)).items() if static.get(k) != v}
        for how in ("more prompts", "no refill", "dynamic")
    }
    assert found["more prompts"] == {"sampling.prompts_per_step"}
    assert all(
        k.startswith("sampling.dynamic") for how in ("no refill", "dynamic") for k in found[how]
    )


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


def test_a_study_in_progress_says_what_is_missing_and_a_failed_run_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for how in RATES:
        for seed in (0, 1):
            arm = Arm.of(BASE, how)
            write_run(tmp_path, Run("regime", arm, seed), [0.5] + [0.9] * (arm.steps // 10))
    failed = Run("regime", Arm.of("stare", "static"), 0)
    write_run(tmp_path, failed, [0.5, 0.6], failed="out of memory")
    assert call(monkeypatch, "--runs", str(tmp_path), "--report") == 0
    text = capsys.readouterr().out
    assert "5 of 110 planned runs ended, 1 of them failed. **105 are missing.**" in text
    assert "**failed**: regime, stare, static, seed 0: out of memory" in text
    assert text.partition("## beyond\n\n")[2].startswith("Not run.")
    assert call(monkeypatch, "--runs", str(tmp_path), "--dry-run") == 0
    told = capsys.readouterr().err
    assert "105 to train" in told
    assert "1 runs failed and stay so; --retry-failed trains them again." in told


def test_other_folders_and_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos").mkdir()
    assert call(monkeypatch, "--runs", str(tmp_path), "--dry-run") == 2
    assert "is not the folder of this study: it has photos" in capsys.readouterr().err
    assert call(monkeypatch, "--runs", str(tmp_path / "none"), "--report") == 2
    assert "no run of the study has ended in" in capsys.readouterr().err
    assert call(monkeypatch, "--runs", "x", "--jobs", "0") == 2
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        ("done", "{}", "done is damaged: expected JSON such as"),
        ("done", "not JSON", "done is damaged: expected JSON such as"),
        ("metrics.jsonl", "", "metrics.jsonl lacks steps or evaluations; expected 300 steps"),
        ("metrics.jsonl", '{"step": 0, "eval/accuracy": 0.5}\n', "expected 300 steps"),
        ("config.resolved.yaml", "objective: {}\n", "was made with seed=None, and the study has 0"),
    ],
)
def test_a_damaged_run_is_named_and_nothing_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    file: str,
    text: str,
    told: str,
) -> None:
    run = Run("regime", Arm.of(BASE, "static"), 0)
    folder = write_run(tmp_path, run, [0.5] * 31)
    (folder / file).write_text(text)
    assert call(monkeypatch, "--runs", str(tmp_path), "--report") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert told in error
    assert str(folder) in error


def test_a_run_of_another_objective_is_refused(tmp_path: Path) -> None:
    run = Run("regime", Arm.of("stapo*", "dynamic"), 0)
    folder = write_run(tmp_path, run, [0.5] * 19)
    command.refuse_other(tmp_path, [run])
    file = folder / "config.resolved.yaml"
    file.write_text(file.read_text().replace("prob < 0.02", "prob < 0.05"))
    with pytest.raises(command.RunError, match="was made with objective="):
        command.refuse_other(tmp_path, [run])


def test_the_table_of_conditions_says_what_their_objectives_change(tmp_path: Path) -> None:
    for name in STUDIED:
        write_run(tmp_path, Run("regime", Arm.of(name, "static"), 0), [0.5] * 31)
    text = report.conditions(report.Results(tmp_path))
    assert f"drop: `{objective('stapo*').drop_rule}`".replace("|", "\\|") in text
    assert "reweight: `when(surprisal.top(" in text
