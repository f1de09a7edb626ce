"""What the study of stability trains next, and how long it takes."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from benchmarks.stability import analysis, progress, regimes
from benchmarks.stability.__main__ import _asked, _parser
from benchmarks.stability.conditions import BASE, GROUPS
from benchmarks.stability.plan import Asked, Study
from benchmarks.stability.progress import Lines, Measured, estimate, remaining
from benchmarks.stability.regimes import Setting
from benchmarks.stability.runs import Run
from rich.console import Console

GOOD, BAD = (0.5, 0.7), (0.5, 0.2)
"""Held-out accuracies before and after training."""


def end(folder: Path, run: Run, ends: tuple[float, float], failed: str = "") -> None:
    """Write a run that ended."""
    out = run.folder(folder)
    out.mkdir(parents=True)
    (out / "config.resolved.yaml").write_text("{}")
    lines = [{"step": step} for step in range(run.setting.steps + 1)]
    for step, line in enumerate(lines):
        if step in (0, *range(len(lines))[-regimes.LAST :]):
            line["eval/accuracy"] = ends[step > 0]
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if failed:
        (out / "failed").write_text(failed)
    else:
        facts = {"cpu_seconds": 50, "wall_seconds": 60, "peak_mib": 500, "commit": "abc"}
        (out / "done").write_text(json.dumps(facts))


def search(folder: Path, first_bad: float = 6e-4) -> None:
    """The runs of the axis: those from a learning rate on degraded."""
    for setting in regimes.AXIS:
        for seed in regimes.SEEDS:
            bad = setting.learning_rate >= first_bad
            end(folder, Run(setting, BASE, seed), BAD if bad else GOOD)


def titles(study: Study) -> list[tuple[str, int, bool]]:
    """Title, number and whether they are known, of the runs of each stage."""
    return [(stage.title, stage.count, bool(stage.runs)) for stage in study.stages()]


def test_a_new_study_begins_with_the_search_and_counts_what_follows(tmp_path: Path) -> None:
    assert titles(Study(tmp_path)) == [
        ("search", 24, True),
        ("between", 8, False),
        ("edge", 140, False),
        ("stable", 35, False),
        ("map", 20, False),
    ]


def test_the_search_halves_the_gap_until_an_edge_is_found(tmp_path: Path) -> None:
    search(tmp_path)
    study = Study(tmp_path)
    assert titles(study)[:3] == [("search", 24, True), ("between", 8, True), ("edge", 140, False)]
    middle = Setting(5.5e-4)
    assert {run.setting for run in study.stages()[1].runs} == {middle}
    for seed in regimes.MORE_SEEDS:
        end(tmp_path, Run(middle, BASE, seed), BAD if seed < 104 else GOOD)
    study = Study(tmp_path)
    choice = study.choice()
    assert choice is not None
    assert (choice.edge, choice.stable) == (middle, Setting(3e-4))
    assert choice.beyond == Setting(6e-4)
    edge = study.stages()[2].runs
    assert [(run.condition, run.seed) for run in edge[:8]] == [
        *((name, 0) for name in GROUPS["core"]),
        (BASE, 1),
    ]
    assert [stage.count for stage in study.stages()] == [24, 8, 140, 35, 20]


def test_without_an_edge_after_three_halvings_only_the_stable_setting_is_compared(tmp_path):
    search(tmp_path)
    for rate in (5.5e-4, 5.25e-4, 5.125e-4):
        study = Study(tmp_path)
        assert study.choice() is None
        assert study.stages()[1].runs[-1].setting == Setting(rate)
        for seed in regimes.MORE_SEEDS:
            end(tmp_path, Run(Setting(rate), BASE, seed), BAD)
    study = Study(tmp_path)
    choice = study.choice()
    assert choice is not None
    assert choice.edge is None
    assert [stage.title for stage in study.stages()] == ["search", "between", "stable"]


def test_a_failed_run_of_the_search_degraded_and_its_last_accuracy_is_0(tmp_path: Path) -> None:
    run = Run(regimes.AXIS[0], BASE, 100)
    end(tmp_path, run, GOOD, failed="its process was ended by SIGKILL")
    outcome = analysis.outcome(run.folder(tmp_path))
    assert outcome is not None
    assert (outcome.degraded, outcome.last, outcome.failed) == (
        True,
        0.0,
        "its process was ended by SIGKILL",
    )
    for seed in (101, 102, 103):
        end(tmp_path, dataclasses.replace(run, seed=seed), GOOD)
    for setting in regimes.AXIS[1:]:
        for seed in regimes.SEEDS:
            end(tmp_path, Run(setting, BASE, seed), GOOD)
    choice = Study(tmp_path).choice()
    assert choice is not None
    assert choice.shares[run.setting] == [True, False, False, False]
    assert choice.last[run.setting] == pytest.approx(0.75 * 0.7)
    assert choice.edge == run.setting


def asked(*words: str) -> Asked:
    return _asked(_parser().parse_args(["--runs", "DIR", *words]))


def test_options_name_conditions_and_groups() -> None:
    core = [*GROUPS["core"]]
    usual = asked()
    assert (usual.conditions, usual.core, usual.seeds, usual.chart) == (core, core, 20, True)
    more = asked("--also", "tau_h,without")
    assert more.conditions == [*core, *GROUPS["tau_h"], *GROUPS["without"]]
    assert more.core == core
    few = asked("--only", "stapo, any entropy, dapo-loss", "--seeds", "3")
    assert (few.conditions, few.seeds) == (["stapo, any entropy", "dapo-loss"], 3)
    assert not few.chart
    assert asked("--only", "core", "--also", "core").conditions == core
    assert asked("--rates", "5e-4,7e-4").rates == [5e-4, 7e-4]


def test_conditions_of_groups_are_trained_at_the_edge_only(tmp_path: Path) -> None:
    search(tmp_path, first_bad=1.0)
    for seed in (102, 103):
        mark = Run(regimes.AXIS[-1], BASE, seed).folder(tmp_path) / "done"
        mark.rename(mark.with_name("failed"))
    study = Study(tmp_path, asked("--also", "tau_p", "--seeds", "2"))
    stages = {stage.title: stage.runs for stage in study.stages()}
    edge = {run.condition for run in stages["edge"]}
    assert edge == {*GROUPS["core"], *GROUPS["tau_p"]}
    assert {run.condition for run in stages["stable"]} == {*GROUPS["core"]}
    assert len(stages["edge"]) == 22


@pytest.mark.parametrize(
    "setting", [*regimes.AXIS, Setting(5.5e-4, 1, "max-digits", 30), Setting(1e-5, task="a-b-3")]
)
def test_a_setting_is_read_from_the_name_of_its_folder(setting: Setting) -> None:
    assert Setting.named(str(setting)) == setting


@pytest.mark.parametrize("name", ["policies", "scratchpad-rate-x-updates-4-steps-200", ""])
def test_other_names_are_no_settings(name: str) -> None:
    assert Setting.named(name) is None


@pytest.mark.parametrize(("jobs", "time"), [(3, "0:03:00"), (8, "0:02:15")])
def test_the_estimate_is_the_seconds_of_the_missing_runs_over_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int, time: str
) -> None:
    monkeypatch.setattr(progress, "cores", lambda: 4)
    few = Asked(conditions=["grpo"], seeds=10, rates=[1e-3], steps=100)
    end(tmp_path, Run(Setting(1e-3, steps=100), "grpo", 0), GOOD)
    study, measured = Study(tmp_path, few), Measured.read(tmp_path)
    left = remaining(study, study.stages(), measured)
    assert left == (9, pytest.approx(9 * 60.0))
    told = estimate(left, 10, measured, jobs)
    assert "9 of 10 runs are to train, 60 s each (as its 1 finished runs)." in told
    assert f"{jobs} at one time on 4 cores: {time}." in told


def test_each_run_is_told_in_a_line_and_a_failed_one_with_the_end_of_its_log(tmp_path):
    study = Study(tmp_path, Asked(["grpo", "stapo"], seeds=4, rates=[1e-3], steps=3))
    [stage] = study.stages()
    console = Console(width=100, file=io.StringIO())
    lines = Lines(study, console, 2, [stage])
    run = stage.runs
    end(tmp_path, run[0], GOOD)
    end(tmp_path, run[2], GOOD, failed="its process was ended by SIGKILL")
    (run[2].folder(tmp_path) / "log").write_text("first\nsecond\nthe last line\n")
    for index, state in ((0, "running"), (0, "done"), (2, "failed: by SIGKILL"), (4, "stopped")):
        lines.tell(run[index], state)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "grpo 0: running\n" in shown
    assert "grpo 0: done, last accuracy 0.700; 6 to go" in shown
    assert "grpo 1: failed: by SIGKILL\n" in shown
    assert "the last line" in shown
    assert "grpo 2: stopped; it starts again" in shown
